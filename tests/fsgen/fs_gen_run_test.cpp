// SPDX-License-Identifier: MIT
// What APP sees under fs-gen is what it sees without: arguments, streams, environment, exit status,
// signals. And nothing is left behind, however the run ends.

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <thread>

#include "base/child.hpp"
#include "base/fd.hpp"
#include "tests/fsgen/run_fixture.hpp"
#include "tests/support/build_elf.hpp"

namespace heddle::test {
namespace {

namespace fs = std::filesystem;

class FsGenRun : public FsGenFixture {};

TEST_F(FsGenRun, arguments_arrive_as_they_are) {
  const std::vector<std::string> words{"/usr/bin/printf", "[%s]",    "a b", "", "--",
                                       "$HOME;id",        "\xff\n\t"};
  const auto bare = run(words);
  const auto ours = run_guided(words);
  EXPECT_EQ(ours.out, bare.out);
  EXPECT_EQ(ours.err, "");
  EXPECT_EQ(ours.status, 0);
}

TEST_F(FsGenRun, exit_status_is_apps_own) {
  EXPECT_EQ(run_guided({"/bin/sh", "-c", "exit 42"}).status, 42);
  EXPECT_EQ(run_guided({"/bin/sh", "-c", "kill -USR1 $$"}).status, 128 + SIGUSR1);
  EXPECT_EQ(run_guided({"/bin/sh", "-c", "kill -KILL $$"}).status, 128 + SIGKILL);
}

TEST_F(FsGenRun, what_cannot_run_gives_126_or_127_and_one_line) {
  auto missing = run_guided({dir_ / "no such program"});
  EXPECT_EQ(missing.status, 127);
  EXPECT_EQ(std::count(missing.err.begin(), missing.err.end(), '\n'), 1) << missing.err;
  EXPECT_EQ(run_guided({"no-such-program-anywhere"}).status, 127);
  const auto plain = write_text_file(dir_ / "plain", "echo hello\n", 0644);
  EXPECT_EQ(run_guided({plain}).status, 126);
  EXPECT_EQ(run_guided({dir_.path()}).status, 126);
}

TEST_F(FsGenRun, a_script_without_shebang_runs_as_a_shell_runs_it) {
  const auto script = write_text_file(dir_ / "script", "echo hello \"$1\"\n", 0755);
  const auto ours = run_guided({script, "a b"});
  EXPECT_EQ(ours.out, "hello a b\n") << ours.err;
}

TEST_F(FsGenRun, a_script_runs_guided_through_its_interpreter) {
  const auto script =
      write_text_file(dir_ / "script", "#!/usr/bin/env -S perl -w\nprint \"$0\\n\";", 0755);
  const auto json = dir_ / "report.json";
  const auto ours = run({fs_gen_, "-q", "--json", json, script}, options_);
  EXPECT_EQ(ours.out, script + "\n") << ours.err;
  const auto report = nlohmann::json::parse(std::ifstream(json));
  EXPECT_TRUE(report["guided"].get<bool>());
  EXPECT_EQ(report["guided_processes"], 2U);  // env, then perl
}

TEST_F(FsGenRun, a_static_program_runs_as_it_is_and_is_said_to) {
  const auto program =
      build_program({.output = dir_ / "static",
                     .source = "#include <stdio.h>\nint main(){puts(\"hi\");return 5;}",
                     .flags = {"-static", "-no-pie"}});
  const auto ours = run({fs_gen_, program}, options_);
  EXPECT_EQ(ours.out, "hi\n");
  EXPECT_EQ(ours.status, 5);
  EXPECT_NE(ours.err.find("static program"), std::string::npos) << ours.err;
}

TEST_F(FsGenRun, stdin_and_cwd_are_apps) {
  RunOptions options = options_;
  options.input = "through the pipe\n";
  options.cwd = dir_.path();
  EXPECT_EQ(run(command({"/bin/cat"}), options).out, "through the pipe\n");
  EXPECT_EQ(run(command({"/bin/pwd"}), options).out, dir_.path() + "\n");
}

TEST_F(FsGenRun, environment_differs_only_in_what_guides) {
  const auto lines = [](const std::string& text) {
    std::vector<std::string> out;
    std::istringstream in(text);
    for (std::string line; std::getline(in, line);) {
      const bool ours = line.starts_with("LD_AUDIT=") || line.starts_with("HEDDLE_") ||
                        line.starts_with("GLIBC_TUNABLES=");
      if (!ours) out.push_back(line);
    }
    std::sort(out.begin(), out.end());
    return out;
  };
  EXPECT_EQ(lines(run_guided({"/usr/bin/env"}).out), lines(run({"/usr/bin/env"}, options_).out));
}

TEST_F(FsGenRun, open_descriptors_are_the_callers) {
  const std::vector<std::string> words{"/bin/sh", "-c",
                                       "ls /proc/self/fd | sort -n | tr '\\n' ' '"};
  EXPECT_EQ(run_guided(words).out, run(words).out);
}

TEST_F(FsGenRun, a_missing_library_fails_with_the_loaders_own_words) {
  const auto library = build_library({.output = dir_ / "lib/libgone.so",
                                      .source = "int gone(void){return 1;}",
                                      .flags = {"-Wl,-soname,libgone.so"}});
  const auto program = build_program({.output = dir_ / "app",
                                      .source = "int gone(void);int main(){return gone();}",
                                      .flags = {library, "-Wl,-rpath," + dir_ / "lib"}});
  fs::remove(library);
  const auto bare = run({program});
  const auto ours = run_guided({program});
  EXPECT_EQ(ours.status, bare.status);
  EXPECT_NE(ours.err.find(bare.err), std::string::npos) << ours.err;
}

TEST_F(FsGenRun, a_signal_to_fs_gen_reaches_app) {
  const auto mark = dir_ / "mark";
  auto child = spawn(fs_gen_, {"fs-gen", "-q", "/bin/sh", "-c",
                               "trap 'echo got > " + mark + "; exit 7' TERM; echo > " + mark +
                                   ".up; while :; do sleep 0.01; done"});
  ASSERT_TRUE(child) << child.error().message();
  ASSERT_TRUE(wait_until(std::chrono::seconds(20), [&] { return fs::exists(mark + ".up"); }));
  ::kill(child->pid(), SIGTERM);
  const auto status = child->wait_for(std::chrono::seconds(10));
  ASSERT_TRUE(status && *status);
  EXPECT_EQ(**status, 7);
  EXPECT_TRUE(fs::exists(mark));
}

/// The pid that a test program wrote to `path`.
int read_pid(const std::string& path) {
  int pid = 0;
  std::ifstream(path) >> pid;
  return pid;
}

TEST_F(FsGenRun, killed_itself_it_takes_app_mount_and_directory_with_it) {
  const auto pid_file = dir_ / "pid";
  SpawnOptions spawn_options;
  spawn_options.environment = {"PATH=/usr/bin:/bin", "TMPDIR=" + dir_ / "tmp",
                               "XDG_CACHE_HOME=" + dir_ / "cache"};
  auto child = spawn(
      fs_gen_, {"fs-gen", "-q", "/bin/sh", "-c", "echo $$ > " + pid_file + "; exec sleep 600"},
      spawn_options);
  ASSERT_TRUE(child);
  ASSERT_TRUE(wait_until(std::chrono::seconds(20), [&] { return read_pid(pid_file) > 0; }));
  const int app = read_pid(pid_file);
  ::kill(child->pid(), SIGKILL);
  (void)child->wait();
  EXPECT_TRUE(wait_until(std::chrono::seconds(5), [&] { return !is_running(app); }));
}

TEST_F(FsGenRun, a_mount_that_ends_before_app_is_said) {
  const std::string kill_daemon =
      "for p in $(cat /proc/$PPID/task/*/children); do read name < /proc/$p/comm; "
      "[ \"$name\" != fs-mount ] || kill -9 $p; done; exit 5";
  const auto ours = run_guided({"/bin/sh", "-c", kill_daemon});
  EXPECT_EQ(ours.status, 5);
  EXPECT_NE(ours.err.find("fs-gen: warning: the mount ended before the program did\n"),
            std::string::npos)
      << ours.err;
}

TEST_F(FsGenRun, what_app_leaves_behind_keeps_its_mount) {
  // The child outlives APP by a moment and then starts a program anew through the mount.
  const auto go = dir_ / "go";
  const auto done = dir_ / "done";
  const auto ours = run({fs_gen_, "/bin/sh", "-c",
                         "(while [ ! -e " + go + " ]; do sleep 0.01; done; ls / > " + done +
                             ".new && mv " + done + ".new " + done + ") >/dev/null 2>&1 & exit 3"},
                        options_);
  EXPECT_EQ(ours.status, 3);
  EXPECT_NE(ours.err.find("the mount stays"), std::string::npos) << ours.err;
  write_text_file(go, "");
  EXPECT_TRUE(wait_until(std::chrono::seconds(10), [&] { return fs::exists(done); }));
}

TEST_F(FsGenRun, a_stopped_app_stops_fs_gen_and_both_go_on) {
  const auto pid_file = dir_ / "pid";
  auto child = spawn(fs_gen_, {"fs-gen", "-q", "/bin/sh", "-c",
                               "echo $$ > " + pid_file + "; kill -STOP $$; exit 9"});
  ASSERT_TRUE(child);
  int status = 0;
  ASSERT_TRUE(wait_until(std::chrono::seconds(20), [&] {
    return ::waitpid(child->pid(), &status, WUNTRACED | WNOHANG) == child->pid();
  }));
  ASSERT_TRUE(WIFSTOPPED(status));
  ::kill(child->pid(), SIGCONT);
  const auto end = child->wait_for(std::chrono::seconds(10));
  ASSERT_TRUE(end && *end);
  EXPECT_EQ(**end, 9);
}

TEST_F(FsGenRun, a_report_that_cannot_be_written_after_all_leaves_apps_status) {
  const auto ours = sh("mkdir gone; $FS_GEN -q --json gone/json /bin/sh -c 'rmdir gone; exit 4'");
  EXPECT_EQ(ours.status, 4);
  EXPECT_NE(ours.err.find("gone/json"), std::string::npos) << ours.err;
}

TEST_F(FsGenRun, usage_errors_give_2) {
  EXPECT_EQ(run({fs_gen_}).status, 2);
  EXPECT_EQ(run({fs_gen_, "--no-such-option", "/bin/true"}).status, 2);
  EXPECT_EQ(run({fs_gen_, "--map", dir_ / "none", "/bin/true"}).status, 3);
}

}  // namespace
}  // namespace heddle::test
