// SPDX-License-Identifier: MIT
// What stands in the trace, and what is made of it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>

#include "tests/record/recorded.hpp"
#include "tests/support/build_elf.hpp"

namespace heddle::test {
namespace {

using ::testing::HasSubstr;
using trace::Op;

TEST(Recorder, odd_names_are_in_the_trace_as_they_are) {
  HEDDLE_STAGED(program, "fs-record");
  TestDir dir;
  const std::string odd = dir / "sp ace\ttab\nnl\\bs\xff\xfe";
  write_text_file(odd, "x");
  for (const auto& form : {std::vector<std::string>{}, std::vector<std::string>{"--json"}}) {
    EXPECT_EQ(record(dir / "run.txt", {"cat", odd}, {}, form).out, "x");
    const auto opens = read_seen(dir / "run.txt").places(Op::open);
    EXPECT_EQ(std::count(opens.begin(), opens.end(), odd), 1);
  }
}

TEST(Recorder, the_name_that_was_asked_for_is_told) {
  HEDDLE_STAGED(program, "fs-record");
  TestDir dir;
  run_checked({"mkdir", dir / "real"});
  write_text_file(dir / "real/lib.so.1.2", "x");
  run_checked({"ln", "-s", "real", dir / "link"});
  run_checked({"ln", "-s", "lib.so.1.2", dir / "real/lib.so.1"});
  record(dir / "run.txt", {"cat", dir / "link/lib.so.1"});
  const auto seen = read_seen(dir / "run.txt");
  const auto open = std::find_if(seen.events.begin(), seen.events.end(), [&](const SeenEvent& e) {
    return e.op == Op::open && e.path == dir / "link/lib.so.1";
  });
  ASSERT_NE(open, seen.events.end());
  EXPECT_EQ(open->resolved, dir / "real/lib.so.1.2");
  EXPECT_TRUE(open->exe.ends_with("/cat"));
}

TEST(Recorder, the_same_run_twice_is_no_difference_to_fs_diff) {
  HEDDLE_STAGED(program, "fs-record");
  HEDDLE_STAGED(fs_diff, "fs-diff");
  TestDir dir;
  RunOptions options;
  options.env = {"PYTHONDONTWRITEBYTECODE=1"};
  // The kernel keeps directories for a second, and closes what is open at exit in no fixed order.
  for (const auto& [name, nap] : {std::pair{"a", "0"}, {"b", "1.2"}}) {
    const auto script = std::string("import json, time; time.sleep(") + nap +
                        "); import sqlite3, ctypes, decimal, numpy";
    EXPECT_EQ(record(dir / name, {"/usr/bin/python3", "-c", script}, options).status, 0);
  }
  const auto same = run({fs_diff, "--summary", dir / "a", dir / "b"});
  EXPECT_EQ(same.status, 0) << same.out;
}

TEST(Recorder, operations_are_chosen) {
  HEDDLE_STAGED(program, "fs-record");
  TestDir dir;
  for (const auto& ops : {std::vector<std::string>{"--op", "open,lookup"},
                          std::vector<std::string>{"--op", "open", "--op", "lookup"}}) {
    EXPECT_EQ(record(dir / "run.txt", {"cat", "/etc/passwd"}, {}, ops).status, 0);
    const auto seen = read_seen(dir / "run.txt");
    EXPECT_FALSE(seen.places(Op::open).empty());
    EXPECT_FALSE(seen.places(Op::lookup).empty());
    EXPECT_TRUE(seen.places(Op::stat).empty() && seen.places(Op::close).empty());
  }
  const auto frob = record(dir / "run.txt", {"true"}, {}, {"--op", "frob"});
  EXPECT_EQ(frob.status, 2);
  EXPECT_THAT(frob.err, HasSubstr("lookup, open, create"));
}

TEST(Recorder, a_scope_is_all_that_is_recorded) {
  HEDDLE_STAGED(program, "fs-record");
  TestDir dir;
  run_checked({"mkdir", dir / "in", dir / "out"});
  write_text_file(dir / "in/a", "a");
  write_text_file(dir / "out/b", "b");
  RunOptions options;
  options.cwd = dir / "in";
  const auto done =
      record(dir / "run.txt", {"cat", "a", dir / "out/b"}, options, {"--scope", dir / "in"});
  EXPECT_EQ(done.out, "ab") << done.err;
  const auto seen = read_seen(dir / "run.txt");
  EXPECT_EQ(seen.header.scopes, std::vector<std::string>{dir / "in"});
  EXPECT_EQ(seen.places(Op::open), std::vector<std::string>{dir / "in/a"});
}

// execve closes files under a lock that much of /proc waits for (fs/exec.c, begin_new_exec()).
TEST(Recorder, a_program_with_many_files_open_to_write_execs_another) {
  HEDDLE_STAGED(program, "fs-record");
  TestDir dir;
  const std::string mark = "HEDDLE_TEST_MARK=" + dir.path();
  RunOptions options;
  options.cwd = dir.path();
  options.env = {mark};
  options.deadline = std::chrono::seconds(30);
  write_text_file(dir / "file", "x");
  const std::string script =
      "import os\npids = []\nfor n in range(4):\n pid = os.fork()\n if pid == 0:\n"
      "  files = [os.open('file', os.O_WRONLY) for i in range(300)]\n"
      "  for i in range(5): os.write(files[i], b'y')\n"
      "  os.execv('/bin/sh', ['sh', '-c', 'exit 7'])\n pids.append(pid)\n"
      "print([os.waitstatus_to_exitcode(os.waitpid(p, 0)[1]) for p in pids])\n";
  for (const auto& form : {std::vector<std::string>{}, std::vector<std::string>{"--io"},
                           std::vector<std::string>{"--op", "close"}}) {
    const auto done = record(dir / "run.txt", {"/usr/bin/python3", "-c", script}, options, form);
    if (done.timed_out)
      for (const int pid : recorders(mark)) ::kill(pid, SIGKILL);
    ASSERT_FALSE(done.timed_out);
    EXPECT_EQ(done.out, "[7, 7, 7, 7]\n") << done.err;
    const auto seen = read_seen(dir / "run.txt");
    EXPECT_TRUE(seen.complete());
    const auto closes = seen.places(Op::close);
    EXPECT_EQ(std::count(closes.begin(), closes.end(), dir / "file"), 1200);
    for (const auto& e : seen.events)
      if (e.op == Op::close && e.place() == dir / "file") {
        EXPECT_TRUE(e.exe.find("python3") != std::string::npos && e.pid > 0) << e.exe;
      }
  }
}

TEST(Recorder, the_slim_copy_is_enough_to_run) {
  HEDDLE_STAGED(program, "fs-record");
  if (::geteuid() != 0) HEDDLE_SKIP("needs root for chroot");
  TestDir dir;
  RunOptions options;
  options.cwd = "/";
  const auto done = run(
      {program, "--out", dir / "run.txt", "--slim", dir / "slim", "--summary", "xz", "--version"},
      options);
  EXPECT_EQ(done.status, 0) << done.err;
  EXPECT_NE(done.err.find("files on the root's file system"), std::string::npos) << done.err;
  EXPECT_NE(done.err.find("missed most"), std::string::npos) << done.err;
  EXPECT_EQ(run({"chroot", dir / "slim", "/usr/bin/xz", "--version"}).out, done.out);
  EXPECT_EQ(run({program, "--trace", dir / "run.txt", "--slim", dir / "again"}).status, 0);
  EXPECT_EQ(run({"diff", "-r", dir / "slim", dir / "again"}).status, 0);
}

TEST(Recorder, the_static_program_runs_in_a_foreign_root) {
  HEDDLE_STAGED(program, "fs-record");
  HEDDLE_STAGED(static_program, "fs-record-static");
  if (::geteuid() != 0) HEDDLE_SKIP("needs root for chroot");
  TestDir dir;
  RunOptions options;
  options.cwd = "/";
  ASSERT_EQ(
      run({program, "-q", "--out", dir / "run.txt", "--slim", dir / "root", "xz", "--version"},
          options)
          .status,
      0);
  run_checked({"cp", static_program, dir / "root/fs-record"});
  const auto done =
      run({"unshare", "-m", "sh", "-c",
           "cd \"$0\" && mount --bind . . && cd \"$0\" && mount --rbind /dev dev && mount -t "
           "proc proc proc && exec chroot . /fs-record -q --out /tmp/run.txt /usr/bin/xz --version",
           dir / "root"});
  EXPECT_EQ(done.status, 0) << done.err;
  EXPECT_EQ(done.out, run({"xz", "--version"}).out);
  EXPECT_TRUE(read_seen(dir / "root/tmp/run.txt").complete());
}

}  // namespace
}  // namespace heddle::test
