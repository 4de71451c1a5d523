// SPDX-License-Identifier: MIT
// How recordings end that do not end by themselves.
#include <gtest/gtest.h>
#include <sys/mount.h>
#include <unistd.h>

#include "tests/record/recorded.hpp"
#include "tests/support/build_elf.hpp"

namespace heddle::test {
namespace {

/// Lines of `ps` that hold `text` and are alive.
bool runs(const std::string& text) {
  return run({"sh", "-c",
              "ps -eo stat,args | grep -v '^Z' | grep -v grep | grep -q -- '" + text + "'"})
             .status == 0;
}

TEST(Recorder, a_killed_program_or_recorder_leaves_nothing) {
  HEDDLE_STAGED(program, "fs-record");
  int number = 0;
  // The shell tells its own pid, its parent is fs-record.
  for (const std::string whom : {"$$", "$PPID"})
    for (const std::string signal : {"TERM", "INT", "KILL"}) {
      SCOPED_TRACE(whom + " " + signal);
      TestDir dir;
      const std::string nap = "31." + std::to_string(++number) + std::to_string(::getpid());
      const std::string script =
          "exec 2>/dev/null; (sleep 0.2; kill -" + signal + " " + whom + ") & exec sleep " + nap;
      const auto done =
          run({"sh", "-c", "exec \"$0\" -q --out run.txt sh -c \"$1\"", program, script},
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

/// What APP has started goes on, as natively; it is served and not recorded.
TEST(Recorder, processes_of_a_killed_recording_go_on) {
  HEDDLE_STAGED(program, "fs-record");
  TestDir dir;
  const std::string script = "(sleep 2; cat /etc/passwd > late) & kill -KILL $PPID; sleep 3";
  (void)run({"sh", "-c", "exec \"$0\" -q --out go-on.txt sh -c \"$1\"", program, script},
            {{}, dir.path(), {}, std::chrono::seconds(20)});
  EXPECT_TRUE(wait_until(std::chrono::seconds(10), [&] {
    return read_file(dir / "late").value_or("").starts_with("root:");
  }));
  EXPECT_TRUE(wait_until(std::chrono::seconds(5), [&] { return !runs("--out go-on.txt sh -c"); }));
  EXPECT_FALSE(read_seen(dir / "go-on.txt").complete());
}

TEST(Recorder, proot_serves_where_namespaces_are_forbidden) {
  HEDDLE_STAGED(program, "fs-record");
  if (run({"sh", "-c", "command -v proot && command -v fusermount3"}).status != 0)
    HEDDLE_SKIP("proot or fusermount3 is not installed");
  TestDir dir;
  expect_same(run({"xz", "--help"}),
              record(dir / "run.txt", {"xz", "--help"}, {}, {"--via", "proot"}));
  const auto seen = read_seen(dir / "run.txt");
  EXPECT_TRUE(seen.complete());
  EXPECT_EQ(seen.header.method, "proot");
  EXPECT_EQ(mounts_with("heddle-record"), 0U);
  const std::string nap = "32." + std::to_string(::getpid());
  run({"sh", "-c", "exec \"$0\" -q --via proot --out run.txt sh -c \"$1\"", program,
       "sleep 0.3; kill -KILL $(ps -o ppid= $(ps -o ppid= $$)); sleep " + nap},
      {{}, dir.path(), {}, std::chrono::seconds(20)});
  EXPECT_TRUE(wait_until(std::chrono::seconds(5), [&] { return !runs("sleep " + nap); }));
  EXPECT_TRUE(
      wait_until(std::chrono::seconds(5), [&] { return mounts_with("heddle-record") == 0; }));
}

TEST(Recorder, a_full_disk_is_said_and_the_program_runs_on) {
  HEDDLE_STAGED(program, "fs-record");
  if (::geteuid() != 0) HEDDLE_SKIP("needs root to mount a small disk");
  TestDir dir;
  run_checked({"mkdir", dir / "small"});
  ASSERT_EQ(::mount("small", (dir / "small").c_str(), "tmpfs", 0, "size=64k"), 0);
  const auto done =
      record(dir / "small/run.txt",
             {"sh", "-c", "for i in $(seq 300); do cat /etc/passwd >/dev/null; done; echo end"});
  const auto seen = read_seen(dir / "small/run.txt");
  ::umount((dir / "small").c_str());
  EXPECT_EQ(done.out, "end\n");
  EXPECT_EQ(done.status, 3);
  EXPECT_NE(done.err.find("No space left"), std::string::npos) << done.err;
  EXPECT_EQ(done.err.find('\n'), done.err.size() - 1) << done.err;
  EXPECT_FALSE(seen.complete());
}

}  // namespace
}  // namespace heddle::test
