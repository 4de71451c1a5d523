// SPDX-License-Identifier: MIT
// Programs do under the recorder what they do without it.
#include <gtest/gtest.h>
#include <unistd.h>

#include "base/sandbox/sanitized.hpp"
#include "tests/record/recorded.hpp"
#include "tests/support/build_elf.hpp"

namespace heddle::test {
namespace {

TEST(Recorder, files_behave_as_natively) {
  HEDDLE_STAGED(program, "fs-record");
  TestDir dir;
  run_checked({"mkdir", dir / "native", dir / "recorded"});
  const auto native = run({HEDDLE_FS_PROBE, dir / "native"});
  const auto recorded = record(dir / "run.txt", {HEDDLE_FS_PROBE, dir / "recorded"});
  expect_same(native, recorded);
  EXPECT_EQ(native.status, 0);
  EXPECT_GT(native.out.size(), 3000U);
  EXPECT_EQ(run({"diff", "-r", "--no-dereference", "--exclude=sock", "--exclude=fifo",
                 "--exclude=node", dir / "native", dir / "recorded"})
                .status,
            0);
}

TEST(Recorder, arguments_arrive_as_they_are) {
  expect_same_run({"printf", "[%s]", "a b", "", "$x", "tab\tnl\n", "\xff"});
}

TEST(Recorder, exit_codes_are_the_programs_own) {
  expect_same_run({"sh", "-c", "exit 7"});
  HEDDLE_STAGED(program, "fs-record");
  TestDir dir;
  EXPECT_EQ(record(dir / "r", {"/no/such/program"}).status, 127);
  EXPECT_EQ(record(dir / "r", {dir.path()}).status, 126);
  EXPECT_EQ(run({program, "--append", dir / "r", "true"}).status, 2);
  EXPECT_EQ(run({program, "--trace", dir / "missing", "--summary"}).status, 3);
  write_text_file(dir / "bad", "no trace\n");
  EXPECT_EQ(run({program, "--trace", dir / "bad", "--summary"}).status, 2);
  EXPECT_EQ(run({program, "true"}).status, 2);
  EXPECT_EQ(record("/no/such/directory/run.txt", {"true"}).status, 3);
}

TEST(Recorder, few_descriptors_suffice) {
  HEDDLE_STAGED(program, "fs-record");
  TestDir dir;
  const auto done =
      record(dir / "run.txt", {"bash", "-c",
                               "ulimit -n 256; exec /usr/bin/python3 -c \"\nfor i in range(20000): "
                               "open('/etc/passwd').close()\n"
                               "f=[open('/etc/passwd') for i in range(240)]\nprint('ok')\""});
  EXPECT_EQ(done.out, "ok\n") << done.err;
}

TEST(Recorder, little_address_space_is_enough) {
  HEDDLE_STAGED(program, "fs-record");
  if (kSanitized) HEDDLE_SKIP("a sanitizer takes terabytes of it");
  const TestDir dir;
  const auto limited = run({"sh", "-c", "ulimit -v 1000000; exec \"$0\" \"$@\"", program, "--quiet",
                            "--out", dir / "run.txt", "/bin/echo", "ran"});
  EXPECT_EQ(limited.status, 0) << limited.err;
  EXPECT_EQ(limited.out, "ran\n");
  EXPECT_TRUE(read_seen(dir / "run.txt").complete());
}

}  // namespace
}  // namespace heddle::test
