// SPDX-License-Identifier: MIT
// Contents of traces, summaries and slim copies.

#include "tests/record/recorded.hpp"

namespace heddle::test {
namespace {

using trace::Op;

TEST_F(Recorder, writes_odd_names_unchanged) {
  const std::string odd = dir_ / "sp ace\ttab\nnl\\bs\xff\xfe";
  write_text_file(odd, "x");
  for (const auto& form : {std::vector<std::string>{}, std::vector<std::string>{"--json"}}) {
    EXPECT_EQ(record(trace_, {"cat", odd}, {}, form).out, "x");
    const auto opens = read_seen(trace_).places(Op::open);
    EXPECT_EQ(std::count(opens.begin(), opens.end(), odd), 1);
  }
}

TEST_F(Recorder, records_the_requested_and_the_resolved_name) {
  run_checked({"mkdir", dir_ / "real"});
  write_text_file(dir_ / "real/lib.so.1.2", "x");
  run_checked({"ln", "-s", "real", dir_ / "link"});
  run_checked({"ln", "-s", "lib.so.1.2", dir_ / "real/lib.so.1"});
  record(trace_, {"cat", dir_ / "link/lib.so.1"});
  const auto seen = read_seen(trace_);
  const auto open = std::find_if(seen.events.begin(), seen.events.end(), [&](const SeenEvent& e) {
    return e.op == Op::open && e.path == dir_ / "link/lib.so.1";
  });
  ASSERT_NE(open, seen.events.end());
  EXPECT_EQ(open->resolved, dir_ / "real/lib.so.1.2");
  EXPECT_TRUE(open->exe.ends_with("/cat"));
}

TEST_F(Recorder, moves_data_in_requests_of_one_mebibyte) {
  if (::geteuid() != 0) HEDDLE_SKIP("needs root, to raise the read-ahead");
  ASSERT_EQ(record_here({"sh", "-c",
                         "dd if=/dev/zero of=big bs=4M count=2 2>/dev/null && exec dd if=big "
                         "of=/dev/null bs=4M status=none"},
                        {"--io"})
                .status,
            0);
  for (const Op op : {Op::write, Op::read}) {
    std::int64_t all = 0, longest = 0;
    for (const auto& e : read_seen(trace_).events) {
      if (e.op != op || e.path != dir_ / "big") continue;
      all += e.bytes;
      longest += e.bytes == 1 << 20;
    }
    EXPECT_EQ(all, 8 << 20);
    EXPECT_GE(longest, 6) << trace::op_name(op);
  }
}

TEST_F(Recorder, writes_traces_of_equal_runs_that_fs_diff_calls_equal) {
  HEDDLE_STAGED(fs_diff, "fs-diff");
  // The kernel caches directories for a second, and closes files at exit in no fixed order.
  for (const auto& [name, nap] : {std::pair{"a", "0"}, {"b", "1.2"}}) {
    const auto script = std::string("import json, time; time.sleep(") + nap +
                        "); import sqlite3, ctypes, decimal, numpy";
    EXPECT_EQ(record(dir_ / name, {"/usr/bin/python3", "-B", "-c", script}).status, 0);
  }
  const auto same = run({fs_diff, "--summary", dir_ / "a", dir_ / "b"});
  EXPECT_EQ(same.status, 0) << same.out;
}

TEST_F(Recorder, records_only_the_operations_of_option_op) {
  for (const auto& ops : {std::vector<std::string>{"--op", "open,lookup"},
                          std::vector<std::string>{"--op", "open", "--op", "lookup"}}) {
    EXPECT_EQ(record(trace_, {"cat", "/etc/passwd"}, {}, ops).status, 0);
    const auto seen = read_seen(trace_);
    EXPECT_FALSE(seen.places(Op::open).empty());
    EXPECT_FALSE(seen.places(Op::lookup).empty());
    EXPECT_TRUE(seen.places(Op::stat).empty() && seen.places(Op::close).empty());
  }
  // Reads are recorded if they are asked for.
  write_text_file(dir_ / "f", "12345678");
  for (const std::vector<std::string>& ops :
       {std::vector<std::string>{}, {"--op", "read"}, {"--io"}}) {
    EXPECT_EQ(record(trace_, {"cat", dir_ / "f"}, {}, ops).out, "12345678");
    EXPECT_EQ(read_seen(trace_).places(Op::read).empty(), ops.empty());
  }
  const auto frob = record(trace_, {"true"}, {}, {"--op", "frob"});
  EXPECT_EQ(frob.status, 2);
  EXPECT_THAT(frob.err, HasSubstr("lookup, open, create"));
}

TEST_F(Recorder, records_only_files_below_the_scope) {
  run_checked({"mkdir", dir_ / "in", dir_ / "out"});
  write_text_file(dir_ / "in/a", "a");
  write_text_file(dir_ / "out/b", "b");
  const auto done =
      record(trace_, {"cat", "a", dir_ / "out/b"}, {.cwd = dir_ / "in"}, {"--scope", dir_ / "in"});
  EXPECT_EQ(done.out, "ab") << done.err;
  const auto seen = read_seen(trace_);
  EXPECT_EQ(seen.header.scopes, std::vector<std::string>{dir_ / "in"});
  EXPECT_EQ(seen.places(Op::open), std::vector<std::string>{dir_ / "in/a"});
}

/// execve closes files under a lock that many files of /proc wait for (fs/exec.c,
/// begin_new_exec()).
TEST_F(Recorder, lets_a_program_with_many_writable_files_exec) {
  const std::string mark = "HEDDLE_TEST_MARK=" + dir_.path();
  const RunOptions options{.env = {mark}, .cwd = dir_.path(), .deadline = std::chrono::seconds(30)};
  write_text_file(dir_ / "file", "x");
  const std::string script =
      "import os\npids = []\nfor n in range(4):\n pid = os.fork()\n if pid == 0:\n"
      "  files = [os.open('file', os.O_WRONLY) for i in range(300)]\n"
      "  for i in range(5): os.write(files[i], b'y')\n"
      "  os.execv('/bin/sh', ['sh', '-c', 'exit 7'])\n pids.append(pid)\n"
      "print([os.waitstatus_to_exitcode(os.waitpid(p, 0)[1]) for p in pids])\n";
  for (const auto& form : {std::vector<std::string>{}, std::vector<std::string>{"--io"},
                           std::vector<std::string>{"--op", "close"}}) {
    const auto done = record(trace_, {"/usr/bin/python3", "-c", script}, options, form);
    if (done.timed_out)
      for (const int pid : recorders(mark)) ::kill(pid, SIGKILL);
    ASSERT_FALSE(done.timed_out);
    EXPECT_EQ(done.out, "[7, 7, 7, 7]\n") << done.err;
    const auto seen = read_seen(trace_);
    EXPECT_TRUE(seen.complete());
    const auto closes = seen.places(Op::close);
    EXPECT_EQ(std::count(closes.begin(), closes.end(), dir_ / "file"), 1200);
    for (const auto& e : seen.events)
      if (e.op == Op::close && e.place() == dir_ / "file") {
        EXPECT_TRUE(e.exe.find("python3") != std::string::npos && e.pid > 0) << e.exe;
      }
  }
}

TEST_F(Recorder, copies_all_files_that_the_program_needs) {
  if (::geteuid() != 0) HEDDLE_SKIP("needs root for chroot");
  const auto done =
      run({program_, "--out", trace_, "--slim", dir_ / "slim", "--summary", "xz", "--version"},
          {.cwd = "/"});
  EXPECT_EQ(done.status, 0) << done.err;
  EXPECT_NE(done.err.find("files on the root's file system"), std::string::npos) << done.err;
  EXPECT_NE(done.err.find("missed most"), std::string::npos) << done.err;
  EXPECT_EQ(run({"chroot", dir_ / "slim", "/usr/bin/xz", "--version"}).out, done.out);
  EXPECT_EQ(run({program_, "--trace", trace_, "--slim", dir_ / "again"}).status, 0);
  EXPECT_EQ(run({"diff", "-r", dir_ / "slim", dir_ / "again"}).status, 0);
  // Without its footer, as a killed recorder leaves it.
  run_checked({"sed", "-i", "$d", trace_});
  for (const Strings& what : {Strings{"--summary"}, Strings{"--slim", dir_ / "part"}}) {
    const auto cut = run(Strings{program_, "--trace", trace_} + what);
    EXPECT_EQ(cut.status, 3);
    EXPECT_THAT(cut.err, HasSubstr(": the trace is incomplete: "));
  }
}

TEST_F(Recorder, static_build_runs_in_a_foreign_root) {
  HEDDLE_STAGED(static_program, "fs-record");
  if (::geteuid() != 0) HEDDLE_SKIP("needs root for chroot");
  run_checked({program_, "-q", "--out", trace_, "--slim", dir_ / "root", "xz", "--version"},
              {.cwd = "/"});
  run_checked({"cp", static_program, dir_ / "root/fs-record"});
  const auto done =
      run({"unshare", "-m", "sh", "-c",
           "cd \"$0\" && mount --bind . . && cd \"$0\" && mount --rbind /dev dev && mount -t "
           "proc proc proc && exec chroot . /fs-record -q --out /tmp/run.txt /usr/bin/xz --version",
           dir_ / "root"});
  EXPECT_EQ(done.status, 0) << done.err;
  EXPECT_EQ(done.out, run({"xz", "--version"}).out);
  EXPECT_TRUE(read_seen(dir_ / "root/tmp/run.txt").complete());
}

}  // namespace
}  // namespace heddle::test
