// SPDX-License-Identifier: MIT
// Programs behave under the recorder as without it.

#include "base/sandbox/sanitized.hpp"
#include "tests/record/recorded.hpp"

namespace heddle::test {
namespace {

TEST_F(Recorder, serves_file_operations_as_natively) {
  run_checked({"mkdir", dir_ / "native", dir_ / "recorded"});
  const auto native = run({HEDDLE_FS_PROBE, dir_ / "native"});
  const auto recorded = record(trace_, {HEDDLE_FS_PROBE, dir_ / "recorded"});
  expect_same(native, recorded);
  EXPECT_EQ(native.status, 0);
  EXPECT_GT(native.out.size(), 3000U);
  EXPECT_EQ(run({"diff", "-r", "--no-dereference", "--exclude=sock", "--exclude=fifo",
                 "--exclude=node", dir_ / "native", dir_ / "recorded"})
                .status,
            0);
}

TEST_F(Recorder, passes_arguments_unchanged) {
  expect_same_run({"printf", "[%s]", "a b", "", "$x", "tab\tnl\n", "\xff"});
}

TEST_F(Recorder, returns_the_exit_status_of_its_program) {
  expect_same_run({"sh", "-c", "exit 7"});
  EXPECT_EQ(record(dir_ / "r", {"/no/such/program"}).status, 127);
  EXPECT_EQ(record(dir_ / "r", {dir_.path()}).status, 126);
  EXPECT_EQ(run({program_, "--append", dir_ / "r", "true"}).status, 2);
  EXPECT_EQ(run({program_, "--trace", dir_ / "missing", "--summary"}).status, 3);
  std::ofstream(dir_ / "cut") << "#heddle-trace\t1\n#events\tx\n1\t2\t3\topen\tOK\t/a";
  const auto cut = run({program_, "--trace", dir_ / "cut", "--summary"});
  EXPECT_EQ(cut.status, 2);
  EXPECT_THAT(cut.err, ::testing::AllOf(::testing::HasSubstr("cut:3: the trace is cut"),
                                        ::testing::Not(::testing::HasSubstr("--partial"))));
  write_text_file(dir_ / "bad", "no trace\n");
  EXPECT_EQ(run({program_, "--trace", dir_ / "bad", "--summary"}).status, 2);
  EXPECT_EQ(run({program_, "true"}).status, 2);
  EXPECT_EQ(record("/no/such/directory/run.txt", {"true"}).status, 3);
}

/// strace reads names in pages that the recorder serves: it would wait for a recorder that it
/// stopped.
TEST_F(Recorder, is_no_tracee_of_a_tracer_that_follows_children) {
  if (!is_installed("strace") || !is_installed("git"))
    HEDDLE_SKIP("strace or git is not installed");
  const auto done = run({"strace", "-f", "-e", "trace=openat,statx", "-o", dir_ / "log", program_,
                         "-q", "--out", trace_, "git", "--version"},
                        {.deadline = std::chrono::seconds(20)});
  expect_same(run({"git", "--version"}), done);
  EXPECT_TRUE(read_seen(trace_).complete());
  EXPECT_NE(value_or_throw(read_file(dir_ / "log")).find("libc.so.6"), std::string::npos);
}

TEST_F(Recorder, works_with_256_descriptors) {
  const auto done =
      record(trace_, {"bash", "-c",
                      "ulimit -n 256; exec /usr/bin/python3 -c \"\nfor i in range(20000): "
                      "open('/etc/passwd').close()\n"
                      "f=[open('/etc/passwd') for i in range(240)]\nprint('ok')\""});
  EXPECT_EQ(done.out, "ok\n") << done.err;
}

TEST_F(Recorder, little_address_space_is_enough) {
  if (kSanitized) HEDDLE_SKIP("a sanitizer reserves terabytes of address space");
  const auto limited = run({"sh", "-c", "ulimit -v 1000000; exec \"$0\" \"$@\"", program_,
                            "--quiet", "--out", dir_ / "run.txt", "/bin/echo", "ran"});
  EXPECT_EQ(limited.status, 0) << limited.err;
  EXPECT_EQ(limited.out, "ran\n");
  EXPECT_TRUE(read_seen(trace_).complete());
}

}  // namespace
}  // namespace heddle::test
