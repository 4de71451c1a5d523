// SPDX-License-Identifier: MIT
#pragma once

#include "tests/support/prelude.hpp"

namespace heddle::test {

/// Logs the signals that it gets; SIGTERM ends it, a second later.
inline constexpr const char* kLogsSignals = R"(#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>
int main() {
  sigset_t all;
  sigfillset(&all);
  sigprocmask(SIG_BLOCK, &all, 0);
  int log = open("log", O_CREAT | O_WRONLY | O_APPEND, 0600);
  FILE *up = fopen("up", "w");
  fprintf(up, "%d %d\n", getpgrp(), getpid());
  fclose(up);
  struct timespec limit = {30, 0};
  for (int got; (got = sigtimedwait(&all, 0, &limit)) > 0;) {
    if (got == SIGTERM) limit.tv_sec = 1;
    if (got != SIGCONT) dprintf(log, "%d\n", got);
  }
})";

/// A TMPDIR and a cache of its own. Files, mounts and processes that a run leaves fail the case.
class LaunchFixture : public ::testing::Test {
 protected:
  void SetUp() override {
    fs_launch_ = staged_program("fs-launch");
    if (fs_launch_.empty()) HEDDLE_SKIP("fs-launch is not installed in $HEDDLE_STAGE");
    fs::create_directory(dir_ / "tmp");
    options_.cwd = dir_.path();
    options_.env = {"TMPDIR=" + dir_ / "tmp",
                    "XDG_CACHE_HOME=" + dir_ / "cache",
                    "HEDDLE_SLOW=/",
                    "OMPI_ALLOW_RUN_AS_ROOT=1",
                    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1",
                    "OMPI_MCA_rmaps_base_oversubscribe=1",
                    "LD_AUDIT",
                    "HEDDLE_LAUNCH"};
  }
  void TearDown() override {
    if (fs_launch_.empty()) return;
    EXPECT_TRUE(wait_until(10s, [&] { return left().empty(); })) << left();
    EXPECT_EQ(mounts_with(dir_ / "tmp"), 0U);
  }

  /// Files in TMPDIR, and daemons with it in their environment.
  std::string left() const {
    return run({"sh", "-c",
                "ls -A tmp | grep ^hd-; grep -lz ^TMPDIR=$PWD/tmp $(grep -lz ^fs-mount$ "
                "/proc/[0-9]*/cmdline | sed s/cmdline/environ/) /dev/null"},
               options_)
        .out;
  }
  Strings launched(const Strings& command, const Strings& options = {}) const {
    return Strings{fs_launch_} + options + command;
  }
  RunResult launch(const Strings& command, const Strings& options = {}) const {
    return run(launched(command, options), options_);
  }
  RunResult sh(const std::string& script) const {
    RunOptions options = options_;
    options.env.push_back("FS_LAUNCH=" + fs_launch_);
    return run({"/bin/bash", "-c", script}, options);
  }
  std::string compile(const std::string& name, const std::string& source,
                      const Strings& flags = {}) const {
    std::ofstream(dir_ / (name + ".c")) << source;
    run_checked(Strings{"cc", "-o", dir_ / name, dir_ / (name + ".c")} + flags);
    return dir_ / name;
  }

  TestDir dir_;
  std::string fs_launch_;
  RunOptions options_;
};

}  // namespace heddle::test
