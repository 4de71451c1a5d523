// SPDX-License-Identifier: MIT
// Recordings that end by a signal or an error.
#include <sys/mount.h>

#include "tests/record/recorded.hpp"

namespace heddle::test {
namespace {

/// Whether the command line of a live process contains `text`.
bool runs(const std::string& text) {
  return run({"sh", "-c",
              "ps -eo stat,args | grep -v '^Z' | grep -v grep | grep -q -- '" + text + "'"})
             .status == 0;
}

TEST_F(Recorder, leaves_nothing_when_it_or_its_program_is_killed) {
  int number = 0;
  // The shell kills itself, or its parent fs-record.
  for (const std::string target : {"$$", "$PPID"})
    for (const std::string signal : {"TERM", "INT", "KILL"}) {
      SCOPED_TRACE(target + " " + signal);
      TestDir dir;
      const std::string nap = "31." + std::to_string(++number) + std::to_string(::getpid());
      const std::string script =
          "exec 2>/dev/null; (sleep 0.2; kill -" + signal + " " + target + ") & exec sleep " + nap;
      const auto done =
          run({"sh", "-c", "exec \"$0\" -q --out run.txt sh -c \"$1\"", program_, script},
              {{}, dir.path(), {}, std::chrono::seconds(20)});
      EXPECT_FALSE(done.timed_out);
      EXPECT_TRUE(wait_until(std::chrono::seconds(5), [&] {
        return !runs("sleep " + nap) && !runs("--out run.txt sh -c") &&
               read_seen(dir / "run.txt").ending == trace::Ending::footer;
      }));
      EXPECT_EQ(mounts_with("heddle-record"), 0U);
      const auto seen = read_seen(dir / "run.txt");
      EXPECT_FALSE(seen.complete());
      EXPECT_GT(seen.events.size(), 10U);
    }
}

/// Their accesses are no longer recorded.
TEST_F(Recorder, serves_processes_that_outlive_a_killed_fs_record) {
  const std::string script = "(sleep 2; cat /etc/passwd > late) & kill -KILL $PPID; sleep 3";
  (void)run({"sh", "-c", "exec \"$0\" -q --out go-on.txt sh -c \"$1\"", program_, script},
            {{}, dir_.path(), {}, std::chrono::seconds(20)});
  EXPECT_TRUE(wait_until(std::chrono::seconds(10), [&] {
    return read_file(dir_ / "late").value_or("").starts_with("root:");
  }));
  EXPECT_TRUE(wait_until(std::chrono::seconds(5), [&] { return !runs("--out go-on.txt sh -c"); }));
  EXPECT_FALSE(read_seen(dir_ / "go-on.txt").complete());
}

TEST_F(Recorder, records_under_proot_and_leaves_no_mount) {
  if (!is_installed("proot") || !is_installed("fusermount3"))
    HEDDLE_SKIP("proot or fusermount3 is not installed");
  expect_same(run({"xz", "--help"}), record_here({"xz", "--help"}, {"--via", "proot"}));
  const auto seen = read_seen(trace_);
  EXPECT_TRUE(seen.complete());
  EXPECT_EQ(seen.header.method, "proot");
  EXPECT_EQ(mounts_with("heddle-record"), 0U);
  const std::string nap = "32." + std::to_string(::getpid());
  run({"sh", "-c", "exec \"$0\" -q --via proot --out run.txt sh -c \"$1\"", program_,
       "sleep 0.3; kill -KILL $(ps -o ppid= $(ps -o ppid= $$)); sleep " + nap},
      {{}, dir_.path(), {}, std::chrono::seconds(20)});
  EXPECT_TRUE(wait_until(std::chrono::seconds(5), [&] { return !runs("sleep " + nap); }));
  EXPECT_TRUE(
      wait_until(std::chrono::seconds(5), [&] { return mounts_with("heddle-record") == 0; }));
}

/// proot itself ignores them.
TEST_F(Recorder, signals_reach_a_program_under_proot) {
  if (!is_installed("proot") || !is_installed("fusermount3"))
    HEDDLE_SKIP("proot or fusermount3 is not installed");
  if (!fs::exists("/proc/self/task/" + std::to_string(::getpid()) + "/children"))
    HEDDLE_SKIP("the kernel does not list children (CONFIG_PROC_CHILDREN)");
  const auto ended =
      run({"sh", "-c",
           "\"$0\" -q --via proot --out run.txt sh -c '>up; exec sleep 60' & "
           "while [ ! -e up ]; do sleep 0.05; done; kill -TERM $!; wait $!; echo ended",
           program_},
          {{}, dir_.path(), {}, std::chrono::seconds(20)});
  EXPECT_EQ(ended.out, "ended\n") << ended.err;
}

/// proot kills the processes that it knows: not one that is being forked, as some of these are
/// while proot is stopped.
TEST_F(Recorder, ends_a_process_that_proot_does_not_know_yet) {
  if (!is_installed("proot") || !is_installed("fusermount3"))
    HEDDLE_SKIP("proot or fusermount3 is not installed");
  const std::string forks =
      "for i in $(seq 30); do for j in $(seq 5000); do (:); done & done; sleep 34";
  for (int round = 0; round < 4; ++round) {
    const auto done =
        run({"sh", "-c",
             "\"$0\" -q --via proot --out run.txt sh -c \"$1\" 2>/dev/null & sleep 0.5; "
             "proot=$(pgrep -x -P $! proot); kill -STOP $proot; sleep 0.3; kill -KILL $!; "
             "kill -CONT $proot; while kill -0 $proot; do sleep 0.1; done",
             program_, forks},
            {{}, dir_.path(), {}, std::chrono::seconds(20)});
    ASSERT_FALSE(done.timed_out) << done.err;
    EXPECT_TRUE(
        wait_until(std::chrono::seconds(5), [&] { return mounts_with("heddle-record") == 0; }));
  }
}

TEST_F(Recorder, reports_a_full_disk_and_lets_the_program_run_on) {
  if (::geteuid() != 0) HEDDLE_SKIP("needs root to mount a small disk");
  run_checked({"mkdir", dir_ / "small"});
  ASSERT_EQ(::mount("small", (dir_ / "small").c_str(), "tmpfs", 0, "size=64k"), 0);
  const auto done =
      record(dir_ / "small/run.txt",
             {"sh", "-c", "for i in $(seq 300); do cat /etc/passwd >/dev/null; done; echo end"});
  const auto seen = read_seen(dir_ / "small/run.txt");
  ::umount((dir_ / "small").c_str());
  EXPECT_EQ(done.out, "end\n");
  EXPECT_EQ(done.status, 3);
  EXPECT_NE(done.err.find("No space left"), std::string::npos) << done.err;
  EXPECT_EQ(done.err.find('\n'), done.err.size() - 1) << done.err;
  EXPECT_FALSE(seen.complete());
}

}  // namespace
}  // namespace heddle::test
