// SPDX-License-Identifier: MIT
// fs-gen with closed streams, relative directories, devices in place of files, signals at any
// moment. APP runs as without fs-gen.

#include <sys/sysmacros.h>
#include <sys/wait.h>

#include "tests/fsgen/run_fixture.hpp"
#include "tests/support/elf_farm.hpp"

namespace heddle::test {
namespace {

class OddWorlds : public FsGenFixture {
 protected:
  /// A copy of a device of /dev, so that a defect cannot replace the machine's own.
  void make_node(const std::string& name, unsigned number) const {
    if (::mknod((dir_ / name).c_str(), S_IFCHR | 0666, makedev(1, number)) != 0)
      HEDDLE_SKIP("device nodes need root");
  }
};

TEST_F(OddWorlds, a_script_sees_the_name_it_was_started_by) {
  write_text_file(dir_ / "script", "#!/bin/sh\necho \"$0\"\n", 0755);
  write_text_file(dir_ / "plain", "echo \"$0\"\n", 0755);
  for (const char* start :
       {"./script", "././script", "./plain", "PATH=.:$PATH script", "PATH=:$PATH script"}) {
    const std::string words = start;
    const auto name = words.rfind(' ') == std::string::npos ? 0 : words.rfind(' ') + 1;
    const auto guided = words.substr(0, name) + "$FS_GEN -q " + words.substr(name);
    const auto ours = sh(guided);
    EXPECT_EQ(ours.out, sh(words).out) << words << ": " << ours.err;
  }
}

TEST_F(OddWorlds, signals_at_any_moment_leave_no_directory) {
  const auto farm = ElfFarm::build(dir_ / "farm", {.libraries = 40});
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) {
    for (int delay_ms = 1; delay_ms < 24; delay_ms += 3) {
      SpawnOptions options;
      options.environment = {"PATH=/usr/bin:/bin", "TMPDIR=" + dir_ / "tmp",
                             "XDG_CACHE_HOME=" + dir_ / "cache", "HEDDLE_SLOW=/"};
      auto child = spawn(fs_gen_,
                         {"fs-gen", "-q", "--via", delay_ms % 2 ? "best" : "direct", "--",
                          "/bin/sh", "-c", farm.program + " >/dev/null"},
                         options);
      ASSERT_TRUE(child);
      // A delay, not a condition: the moment of the signal varies.
      (void)child->wait_for(std::chrono::milliseconds(delay_ms));
      if (child->pid() > 0) ::kill(child->pid(), signal);
      (void)child->wait_for(std::chrono::seconds(20));
      EXPECT_TRUE(wait_until(std::chrono::seconds(10), [&] { return left().empty(); }))
          << "signal " << signal << " after " << delay_ms << " ms: " << left()[0];
      if (HasFailure()) return;
    }
  }
}

TEST_F(OddWorlds, report_to_a_device_or_pipe_does_not_replace_it) {
  make_node("node", 3);
  if (IsSkipped()) return;
  fs::create_symlink("node", dir_ / "null");
  const auto ours =
      sh("mkfifo pipe; cat pipe > got & $FS_GEN -q --json null /bin/true && "
         "$FS_GEN -q --json pipe /bin/true; wait; test -p pipe -a -L null");
  EXPECT_EQ(ours.status, 0) << ours.err;
  EXPECT_TRUE(nlohmann::json::accept(std::ifstream(dir_ / "got")));
  EXPECT_TRUE(fs::is_character_file(dir_ / "node"));
  EXPECT_EQ(sh("$FS_GEN -q --json >(cat > more) /bin/true; "
               "for n in {1..100}; do test -s more && exit; sleep 0.05; done; exit 1")
                .status,
            0);
  const auto map = sh("$FS_GEN -q --out null /bin/true");
  EXPECT_EQ(map.status, 3);
  EXPECT_TRUE(fs::is_symlink(dir_ / "null"));
}

TEST_F(OddWorlds, report_to_stdout_follows_app_s_output) {
  const auto ours =
      sh("$FS_GEN -q --json - /bin/echo app > out; head -n 1 out; "
         "tail -n +2 out > json");
  EXPECT_EQ(ours.out, "app\n") << ours.err;
  EXPECT_TRUE(nlohmann::json::accept(std::ifstream(dir_ / "json")));
}

TEST_F(OddWorlds, trace_can_be_written_to_pipes_and_devices) {
  const auto record = staged_program("fs-record") + " -q ";
  const auto piped = sh(record + "--out - --op open --op exec /bin/true | tail -n 1");
  EXPECT_NE(piped.out.find("complete"), std::string::npos) << piped.out << piped.err;
  EXPECT_EQ(
      sh(record + "--out >(cat > got) /bin/true; "
                  "for n in {1..100}; do grep -q complete got && exit; sleep 0.05; done; exit 1")
          .status,
      0);
  const auto fifo = sh("mkfifo pipe; cat pipe > from & " + record +
                       "--out pipe /bin/true; wait; test -p pipe && grep -c complete from");
  EXPECT_EQ(fifo.out, "1\n") << fifo.err;
  EXPECT_EQ(sh(record + "--out - --summary /bin/true").status, 2);
  make_node("null", 3);
  if (IsSkipped()) return;
  EXPECT_EQ(sh(record + "--out null /bin/true").status, 0);
  EXPECT_TRUE(fs::is_character_file(dir_ / "null"));
}

TEST_F(OddWorlds, unwritable_report_is_refused_before_app_runs) {
  for (const char* options : {"--json no/such/directory/j", "--json .", "--out no/such/directory/m",
                              "--learn --out no/such/m"}) {
    const auto ours = sh(std::string("$FS_GEN ") + options + " /bin/echo ran");
    EXPECT_EQ(ours.status, 3) << options;
    EXPECT_EQ(ours.out, "") << options;
    EXPECT_NE(ours.err.find("cannot write"), std::string::npos) << ours.err;
  }
}

/// The exit status; -n for signal n.
int raw_end(const std::vector<std::string>& argv) {
  auto child = value_or_throw(spawn(argv[0], argv));
  int status = 0;
  EXPECT_EQ(::waitpid(child.release(), &status, 0) > 0, true);
  return WIFSIGNALED(status) ? -WTERMSIG(status) : WEXITSTATUS(status);
}

TEST_F(OddWorlds, signal_that_ends_app_ends_fs_gen_after_the_report) {
  for (const int signal : {SIGINT, SIGTERM, SIGKILL, SIGSEGV, SIGUSR1}) {
    const auto kill = "kill -" + std::to_string(signal) + " $$";
    const auto json = dir_ / "json";
    EXPECT_EQ(raw_end({fs_gen_, "-q", "--json", json, "/bin/sh", "-c", kill}), -signal);
    EXPECT_EQ(nlohmann::json::parse(std::ifstream(json))["exit_status"], 128 + signal);
    fs::remove(json);
  }
  EXPECT_EQ(raw_end({fs_gen_, "-q", "/bin/sh", "-c", "exit 130"}), 130);
}

TEST_F(OddWorlds, shell_loop_stops_at_ctrl_c) {
  // SIGINT to the whole group, as from a terminal; bash goes on unless its child died of it.
  write_text_file(dir_ / "app", "#!/bin/bash\nkill -INT 0\nsleep 9\n", 0755);
  for (const std::string& wrapper : {std::string(), std::string("$FS_GEN -q "),
                                     staged_program("fs-record") + " -q --out trace "})
    EXPECT_EQ(sh("for n in 1 2 3; do echo $n; " + wrapper + "./app; done").out, "1\n") << wrapper;
}

TEST_F(OddWorlds, closed_streams_stay_closed_for_app) {
  for (const char* closed : {"<&-", ">&-", "2>&-", "<&- >&- 2>&-"}) {
    const std::string list =
        " /bin/sh -c 'for n in 0 1 2; do test -e /proc/$$/fd/$n && : >> "
        "open.$n; done; exit 7' ";
    (void)sh(list + closed);
    const auto bare = sh("ls open.*; rm -f open.*");
    const auto ours = sh("$FS_GEN --out map --json json" + list + closed);
    EXPECT_EQ(ours.status, 7) << closed;
    EXPECT_EQ(sh("ls open.*; rm -f open.*").out, bare.out) << closed;
    EXPECT_TRUE(nlohmann::json::accept(std::ifstream(dir_ / "json"))) << closed;
    EXPECT_EQ(run({staged_program("fs-resolve"), "verify", dir_ / "map"}).status, 0) << closed;
  }
}

TEST_F(OddWorlds, closed_stderr_pipe_does_not_change_the_exit_status) {
  const auto ours =
      sh("exec 3>&1; { $FS_GEN /bin/sh -c 'sleep 0; exit 5'; echo $? >&3; } 2>&1 >&3 "
         "| true");
  EXPECT_EQ(ours.out, "5\n");
}

TEST_F(OddWorlds, relative_tmpdir_works) {
  const auto ours =
      sh("TMPDIR=tmp $FS_GEN --json report.json /bin/sh -c 'cd / && /bin/ls /; :' /bin/ls");
  EXPECT_EQ(ours.status, 0);
  EXPECT_TRUE(report().value("passed_over", nlohmann::json::array({"?"})).empty()) << ours.err;
  EXPECT_EQ(report().value("guided_processes", 0), 2) << ours.err;
}

TEST_F(OddWorlds, app_runs_in_a_removed_working_directory) {
  const auto ours = sh("mkdir gone && cd gone && rmdir ../gone && $FS_GEN -q /bin/echo hello");
  EXPECT_EQ(ours.out, "hello\n") << ours.err;
  const auto map = sh("mkdir gone && cd gone && rmdir ../gone && $FS_GEN -q --map ../m /bin/true");
  EXPECT_EQ(map.status, 3);
  EXPECT_EQ(map.err.find("filesystem error"), std::string::npos) << map.err;
}

TEST_F(OddWorlds, daemon_does_not_load_app_s_preload) {
  // The shell preloads it into fs-gen too.
  const auto preloaded = build_library(
      {.output = dir_ / "preload.so",
       .source =
           "#include <fcntl.h>\n#include <stdio.h>\n#include <stdlib.h>\n#include <unistd.h>\n"
           "__attribute__((constructor)) static void note(void){char t[64]=\"\";"
           "int in=open(\"/proc/self/comm\",O_RDONLY),"
           "out=open(getenv(\"NOTES\"),O_WRONLY|O_APPEND|O_CREAT,0600);"
           "if(write(out,t,(size_t)read(in,t,64))){};}",
       .flags = {}});
  const auto ours =
      sh("NOTES=$DIR/notes LD_PRELOAD=" + preloaded + " $FS_GEN -q /bin/echo hello; cat notes");
  EXPECT_EQ(ours.out.substr(0, 6), "hello\n") << ours.err;
  EXPECT_NE(ours.out.find("\necho\n"), std::string::npos) << ours.out;
  EXPECT_EQ(ours.out.find("fs-mount"), std::string::npos) << ours.out;
}

TEST_F(OddWorlds, compare_stops_at_the_first_run_killed_by_a_signal) {
  const auto ours =
      sh("$FS_GEN --compare 50 /bin/sh -c 'echo >> runs; kill -INT $$'; "
         "echo $?; wc -l < runs");
  EXPECT_EQ(ours.out, "130\n1\n") << ours.err;
}

}  // namespace
}  // namespace heddle::test
