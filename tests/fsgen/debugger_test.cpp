// SPDX-License-Identifier: MIT
// Tracers, debuggers, limits and kills around fs-gen.

#include <sys/file.h>

#include "base/find_program.hpp"
#include "tests/fsgen/run_fixture.hpp"
#include "tests/support/elf_farm.hpp"

namespace heddle::test {
namespace {

class Debuggers : public FsGenFixture {
 protected:
  /// A program whose library has a crash(), boom(), and a name() that says where it lies.
  std::string crashing_program() {
    const auto lib = build_library(
        {dir_ / "lib/libcrash.so",
         "#define _GNU_SOURCE\n#include <dlfcn.h>\nint boom(int* p) { return *p; }\n"
         "const char* name(void) { Dl_info i; dladdr(boom, &i); return i.dli_fname; }",
         {"-g", "-Wl,-soname,libcrash.so"}});
    return build_program({dir_ / "crash",
                          "#include <stdio.h>\nint boom(int*); const char* name(void);\n"
                          "int main(int c, char** v) { puts(name()); fflush(stdout); return c > 1 "
                          "? 0 : boom(0); }",
                          {lib, "-g", "-Wl,-rpath," + (dir_ / "lib")}});
  }
};

#define HEDDLE_NEEDS(program) \
  if (!find_program(program)) HEDDLE_SKIP(program " is not installed")

TEST_F(Debuggers, strace_of_fs_gen_never_waits_for_a_daemon_that_it_has_stopped) {
  HEDDLE_NEEDS("strace");
  const auto farm = ElfFarm::build(dir_ / "farm", {.libraries = 60});
  std::vector<Child> busy;
  for (int i = 0; i < 3; ++i)
    busy.push_back(value_or_throw(spawn("/bin/sh", {"sh", "-c", "while :; do :; done"})));
  const Words traced = {
      "timeout", "-sKILL", "20",        "strace",
      "-f",      "-o",     "/dev/null", "-etrace=execve,openat,newfstatat,access"};
  const auto run_traced = [&](Words words, const Words& fs_gen) {
    words.insert(words.end(), fs_gen.begin(), fs_gen.end());
    return run(words, options_);
  };
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(run_traced(traced, command({farm.program}, {"--via", "private"})).out, farm.output);
    Words filtered = traced;
    filtered.emplace_back("--seccomp-bpf");
    // A filter stops the daemon's calls even where it is not traced: no mount.
    const auto direct = run_traced(filtered, command({farm.program}));
    EXPECT_EQ(direct.out, farm.output) << direct.err;
    EXPECT_EQ(report()["via"], "direct");
    const auto refused = run_traced(filtered, command({farm.program}, {"--via", "private"}));
    EXPECT_EQ(refused.status, 3);
    EXPECT_THAT(refused.err, ::testing::HasSubstr("hint: strace without --seccomp-bpf"));
  }
}

TEST_F(Debuggers, valgrind_finds_no_errors_of_an_auditor) {
  HEDDLE_NEEDS("valgrind");
  const Words valgrind = {"valgrind", "-q", "--error-exitcode=9", "ls", "/etc/apt"};
  EXPECT_EQ(same(valgrind).status, 0);
  // Below another program too.
  EXPECT_EQ(same({"/bin/sh", "-c", "valgrind -q --error-exitcode=9 /bin/true; echo $?"}).out,
            "0\n");
  // A user's own auditor stays.
  const auto other = build_library(
      {dir_ / "other.so", "unsigned la_version(unsigned v) { return 0; }", {"-nostdlib"}});
  RunOptions with_other = options_;
  with_other.env.push_back("LD_AUDIT=" + other);
  const auto valgrinds_child = [&](const Words& words) { return run(words, with_other).out; };
  const auto fake = write_text_file(dir_ / "valgrind", "#!/bin/sh\necho \"$LD_AUDIT\"\n", 0755);
  EXPECT_EQ(valgrinds_child(command({fake})), other + "\n");
}

TEST_F(Debuggers, a_core_file_names_libraries_that_are_there_after_the_run) {
  HEDDLE_NEEDS("gdb");
  if (read_file("/proc/sys/kernel/core_pattern").value_or("").substr(0, 4) != "core")
    HEDDLE_SKIP("core files do not go to the working directory");
  const auto app = crashing_program();
  const auto original = dir_ / "lib/libcrash.so\n";
  for (const std::string way : {"private", "direct"}) {
    const auto crashed =
        sh("ulimit -c unlimited; \"$FS_GEN\" -q --via " + way + " \"$DIR/crash\"; echo $?");
    EXPECT_EQ(crashed.out, original + "139\n") << crashed.err;
    ASSERT_TRUE(wait_until(std::chrono::seconds(5), [&] { return left().empty(); }));
    const auto bt = sh("gdb --batch -ex bt crash core* 2>/dev/null; rm -f core*");
    EXPECT_THAT(bt.out, ::testing::HasSubstr(" boom (")) << way;
  }
}

TEST_F(Debuggers, no_file_may_be_written) {
  const auto ours =
      sh("(ulimit -f 0; exec \"$FS_GEN\" -q /usr/bin/python3 -c 'print(3)') "
         "2>/dev/null; echo $?");
  EXPECT_EQ(ours.out, "3\n0\n");
  // APP's own write ends it, as without fs-gen.
  const std::string app = "(ulimit -f 0; exec $X sh -c 'echo 1 > $DIR/file') 2>/dev/null; echo $?";
  EXPECT_EQ(sh("X=\"$FS_GEN -q\"; " + app).out, sh(app).out);
  // What a process of the run would be learned from is written by that process.
  const auto child =
      sh("mkdir none; LD_LIBRARY_PATH=$PWD/none $FS_GEN -q sh -c 'ulimit -f 0; "
         "/bin/echo child' | cat");
  EXPECT_EQ(child.out + child.err, "child\n");
}

TEST_F(Debuggers, short_files_are_no_reason_to_fail) {
  ASSERT_EQ(sh("$FS_GEN -q --slow /usr sh -c 'ls -d /'").out, "/\n");
  for (const char* blocks : {"1", "20", "200"}) {
    const auto ours = sh("(ulimit -f "s + blocks +
                         "; exec $FS_GEN -q --slow /usr sh -c 'ls -d /') 2>said | cat; "
                         "grep -v -e 'File too large' -e ulimit said");
    EXPECT_EQ(ours.out + ours.err, "/\n") << blocks;
  }
}

TEST_F(Debuggers, a_stop_is_reported_by_its_own_signal_and_app_goes_on) {
  for (const std::string signal : {"TSTP", "STOP", "TTIN"}) {
    const auto script =
        " sh -c 'kill -" + signal + " $$; exit 9'; echo $?; kill -CONT %1; wait %1; echo $?";
    const auto stock = sh("set -m;" + script);
    const auto ours = sh("set -m; \"$FS_GEN\" -q" + script);
    EXPECT_EQ(ours.out, stock.out) << signal << ours.err;
    EXPECT_TRUE(ours.out.ends_with("\n9\n")) << ours.out;
  }
}

TEST_F(Debuggers, what_a_kill_has_left_is_removed_by_the_next_run) {
  for (const std::string way : {"direct", "private"}) {
    SpawnOptions spawn_options;
    spawn_options.environment = {"PATH=/usr/bin:/bin", "TMPDIR=" + dir_ / "tmp",
                                 "XDG_CACHE_HOME=" + dir_ / "cache"};
    // All at once, as the end of a job kills its control group.
    auto session = value_or_throw(
        spawn("/usr/bin/setsid", {"setsid", "-w", fs_gen_, "-q", "--via", way, "sleep", "600"},
              spawn_options));
    ASSERT_TRUE(wait_until(std::chrono::seconds(20), [&] { return !left().empty(); }));
    run({"/bin/sh", "-c",
         "for p in /proc/[0-9]*; do tr '\\0' '\\n' < $p/environ 2>/dev/null | grep -qx "
         "\"TMPDIR=$0\" "
         "&& [ ${p#/proc/} != $$ ] && kill -9 ${p#/proc/}; done",
         dir_ / "tmp"});
    (void)session.wait();
    fs::create_directory(dir_ / "tmp/hd-abcdef");
    write_text_file(dir_ / "tmp/hd-abcdef/index", "");
    const auto held_path = dir_ / "tmp/hd-ghijkl";
    fs::create_directory(held_path);
    const Fd held = value_or_throw(open_file(held_path, O_RDONLY | O_DIRECTORY));
    ASSERT_EQ(::flock(held.get(), LOCK_SH), 0);
    EXPECT_EQ(run_guided({"/bin/true"}, {"--via", way}).status, 0);
    EXPECT_TRUE(wait_until(std::chrono::seconds(5), [&] { return left() == Words{held_path}; }))
        << way << ": " << ::testing::PrintToString(left());
    fs::remove(held_path);
  }
}

TEST_F(Debuggers, a_dead_mount_is_removed_where_directories_cannot_be_locked) {
  HEDDLE_NEEDS("fusermount3");
  if (::access("/dev/fuse", R_OK | W_OK) != 0) HEDDLE_SKIP("no /dev/fuse to open");
  SpawnOptions spawn_options;
  spawn_options.environment = {"PATH=/usr/bin:/bin", "TMPDIR=" + dir_ / "tmp",
                               "XDG_CACHE_HOME=" + dir_ / "cache"};
  auto session = value_or_throw(
      spawn("/usr/bin/setsid",
            {"setsid", "-w", fs_gen_, "-q", "--via", "fusermount", "sleep", "600"}, spawn_options));
  ASSERT_TRUE(wait_until(std::chrono::seconds(20), [&] { return mounts_with(dir_ / "tmp") > 0; }));
  // At once, with the guard, which has no such environment.
  run({"/bin/sh", "-c",
       "for p in /proc/[0-9]*; do tr '\\0' '\\n' < $p/environ 2>/dev/null | grep -qx "
       "\"TMPDIR=$0\" && [ ${p#/proc/} != $$ ] && all=\"$all ${p#/proc/}\"; done; "
       "kill -STOP $all; all=\"$all $(ps -o pid= --ppid $(echo $all | tr ' ' ,))\"; "
       "kill -STOP $all; kill -9 $all",
       dir_ / "tmp"});
  (void)session.wait();
  // As flock(2) of a file system without locks.
  const auto no_locks = build_library(
      {dir_ / "nolocks.so",
       "#include <errno.h>\n#include <sys/file.h>\nint flock(int f, int how) { (void)f;\n"
       "if (how & LOCK_EX) { errno = ENOLCK; return -1; } return 0; }"});
  options_.env.push_back("LD_PRELOAD=" + no_locks);
  EXPECT_EQ(run_guided({"/bin/true"}, {"--via", "direct"}).status, 0);
  options_.env.pop_back();
  EXPECT_TRUE(wait_until(std::chrono::seconds(5), [&] { return mounts_with(dir_ / "tmp") == 0; }));
  // Directories are only removed under a lock.
  EXPECT_EQ(run_guided({"/bin/true"}, {"--via", "direct"}).status, 0);
}

TEST_F(Debuggers, fs_gen_opens_no_foreign_directory_in_its_own_process) {
  HEDDLE_NEEDS("strace");
  fs::create_directory(dir_ / "tmp/hd-abcdef");
  const Words traced = {"strace",     "-f", "-o",
                        dir_ / "log", "-e", "trace=execve,flock,chmod,fchmod"};
  Words words = traced;
  const Words fs_gen = command({"/bin/true"}, {"--via", "direct"});
  words.insert(words.end(), fs_gen.begin(), fs_gen.end());
  EXPECT_EQ(run(words, options_).status, 0);
  const auto log = value_or_throw(read_file(dir_ / "log"));
  const auto process_of = [&](const std::string& call) {
    const auto at = log.rfind(call);
    const auto line = log.rfind('\n', at) + 1;
    return at == log.npos ? "none" : log.substr(line, log.find(' ', line) - line);
  };
  EXPECT_EQ(process_of("LOCK_SH"), process_of("execve(\"" + fs_gen_));
  EXPECT_NE(process_of("LOCK_EX|LOCK_NB"), process_of("execve(\"" + fs_gen_));
  EXPECT_NE(process_of("LOCK_EX|LOCK_NB"), "none");
  // Its own directory is closed to others until it is locked.
  EXPECT_LT(log.find("LOCK_SH"), log.find(", 0755)"));
}

}  // namespace
}  // namespace heddle::test
