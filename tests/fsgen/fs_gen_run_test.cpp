// SPDX-License-Identifier: MIT
// APP sees the same arguments, streams, environment, exit status and signals as without fs-gen, and
// nothing is left behind, however the run ends.

#include <sys/wait.h>

#include "tests/fsgen/run_fixture.hpp"

namespace heddle::test {
namespace {

class FsGenRun : public FsGenFixture {};

TEST_F(FsGenRun, arguments_streams_directory_and_descriptors_reach_app_unchanged) {
  const auto script = write_text_file(dir_ / "script", "echo hello \"$1\"\n", 0755);
  options_.cwd = dir_.path();
  options_.input = "through the pipe\n";
  const Words apps[] = {
      {"/usr/bin/printf", "[%s]", "a b", "", "--", "$HOME;id", "\xff\n\t"},
      {script, "a b"},  // without #!, so a shell runs it
      {"/bin/cat"},
      {"/bin/pwd"},
      {"/bin/sh", "-c", "ls /proc/self/fd | sort -n | tr '\\n' ' '; exit 42"},
      {"/bin/sh", "-c", "env | grep -Ev '^(LD_AUDIT|HEDDLE_.*|GLIBC_TUNABLES|_)=' | sort"}};
  for (const auto& app : apps) {
    SCOPED_TRACE(app[0]);
    EXPECT_NE(same(app).out, "");
  }
}

TEST_F(FsGenRun, failed_exec_gives_126_or_127_and_the_reason) {
  write_text_file(dir_ / "main.c", "int main(void){return 0;}");
  run_checked({"cc", "-Wl,--dynamic-linker=/no/ld.so", "-o", dir_ / "other", dir_ / "main.c"});
  const auto script = write_text_file(dir_ / "script", "#!/no/such/interpreter -x\n", 0755);
  auto bytes = value_or_throw(read_file("/bin/true"));
  bytes[18] = static_cast<char>(183);  // EM_AARCH64
  const struct {
    std::string app;
    int status;
    const char* why;
  } cases[] = {{dir_ / "no such program", 127, ""},
               {"no-such-program-anywhere", 127, ""},
               {write_text_file(dir_ / "plain", "echo hello\n", 0644), 126, ""},
               {dir_.path(), 126, ""},
               {write_text_file(dir_ / "foreign", bytes, 0755), 126, "Exec format error"},
               {script, 127, "/no/such/interpreter"},
               {dir_ / "other", 127, "/no/ld.so"}};
  for (const auto& [app, status, why] : cases) {
    const auto ours = gen({"-q", app});
    EXPECT_EQ(ours.status, status) << app;
    EXPECT_EQ(std::count(ours.err.begin(), ours.err.end(), '\n'), 1) << ours.err;
    EXPECT_THAT(ours.err, ::testing::HasSubstr(why));
  }
}

TEST_F(FsGenRun, libraries_that_the_user_has_for_app_are_not_those_of_heddle) {
  for (const char* name : {"libfmt.so.9", "libxxhash.so.0", "liblmdb.so.0", "libLIEF.so.0",
                           "libseccomp.so.2", "libzstd.so.1", "libcrypto.so.3", "libstdc++.so.6"})
    write_text_file(dir_ / ("lib/" + std::string(name)), "no library");
  options_.env.push_back("LD_LIBRARY_PATH=" + (dir_ / "lib"));
  for (const char* via : {"private", "direct"})
    EXPECT_EQ(run_guided({"/bin/echo", "hello"}, {"--via", via, "--slow", "/"}).out, "hello\n");
  EXPECT_TRUE(report()["guided"].get<bool>());
}

TEST_F(FsGenRun, a_script_runs_guided_through_its_interpreter) {
  const auto script =
      write_text_file(dir_ / "script", "#!/usr/bin/env -S perl -w\nprint \"$0\\n\";", 0755);
  const auto ours = run_guided({script});
  EXPECT_EQ(ours.out, script + "\n") << ours.err;
  EXPECT_TRUE(report()["guided"].get<bool>());
  EXPECT_EQ(report()["guided_processes"], 2U);  // env, then perl
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

TEST_F(FsGenRun, lost_mount_is_reported) {
  const std::string kill_daemon =
      "for p in $(cat /proc/$PPID/task/*/children); do read name < /proc/$p/comm; "
      "[ \"$name\" != fs-mount ] || kill -9 $p; done; exit 5";
  const auto ours = run_guided({"/bin/sh", "-c", kill_daemon});
  EXPECT_EQ(ours.status, 5);
  EXPECT_NE(ours.err.find("fs-gen: warning: the mount ended before the program did\n"),
            std::string::npos)
      << ours.err;
}

TEST_F(FsGenRun, background_process_of_app_keeps_its_mount) {
  // The child outlives APP and then starts a program through the mount.
  const auto go = dir_ / "go";
  const auto done = dir_ / "done";
  const auto ours =
      run_guided({"/bin/sh", "-c",
                  "(while [ ! -e " + go + " ]; do sleep 0.01; done; ls / > " + done +
                      ".new && mv " + done + ".new " + done + ") >/dev/null 2>&1 & exit 3"});
  EXPECT_EQ(ours.status, 3);
  EXPECT_TRUE(report()["left_running"].get<bool>());
  write_text_file(go, "");
  EXPECT_TRUE(wait_until(std::chrono::seconds(10), [&] { return fs::exists(done); }));
}

TEST_F(FsGenRun, late_report_failure_keeps_app_s_exit_status) {
  const auto ours = sh("mkdir gone; $FS_GEN -q --json gone/json /bin/sh -c 'rmdir gone; exit 4'");
  EXPECT_EQ(ours.status, 4);
  EXPECT_NE(ours.err.find("gone/json"), std::string::npos) << ours.err;
}

}  // namespace
}  // namespace heddle::test
