// SPDX-License-Identifier: MIT
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/result.hpp"
#include "tests/support/build_elf.hpp"
#include "tests/support/elf_farm.hpp"
#include "tests/support/run.hpp"
#include "tests/support/strace.hpp"
#include "tests/support/test_dir.hpp"

namespace heddle::test {
namespace {

TEST(Run, gives_status_and_both_streams) {
  const auto result = run({"sh", "-c", "cat; echo e >&2; exit 7"}, {.input = "words"});
  EXPECT_EQ(result.status, 7);
  EXPECT_EQ(result.out, "words");
  EXPECT_EQ(result.err, "e\n");
}

TEST(Run, passes_more_than_a_pipe_holds_both_ways) {
  const std::string large(1 << 20, 'x');
  EXPECT_EQ(run({"cat"}, {.input = large}).out, large);
}

TEST(Run, a_signal_is_128_plus_its_number) {
  EXPECT_EQ(run({"sh", "-c", "kill -TERM $$"}).status, 128 + 15);
}

TEST(Run, ends_at_its_deadline_with_the_whole_group) {
  const auto result =
      run({"sh", "-c", "sleep 600 & sleep 600"}, {.deadline = std::chrono::milliseconds(50)});
  EXPECT_TRUE(result.timed_out);
  EXPECT_EQ(result.status, 128 + 9);
}

TEST(Run, does_not_wait_for_a_daemon_that_holds_the_pipes) {
  const auto result = run({"sh", "-c", "sleep 20 & echo $!"});
  EXPECT_EQ(result.status, 0);
  const int pid = std::stoi(result.out);
  EXPECT_TRUE(is_running(pid));
  run_checked({"kill", std::to_string(pid)});
  EXPECT_TRUE(wait_until(std::chrono::seconds(10), [&] { return !is_running(pid); }));
}

TEST(Run, changes_the_environment_and_the_directory) {
  const auto result =
      run({"sh", "-c", "echo \"$A:${HOME-none}\"; pwd"}, {.env = {"A=1 2", "HOME"}, .cwd = "/usr"});
  EXPECT_EQ(result.out, "1 2:none\n/usr\n");
}

TEST(Run, a_missing_program_is_an_error) { EXPECT_THROW(run({"/no/such/program"}), Error); }

struct FarmCase {
  const char* name;
  FarmOptions options;
};
void PrintTo(const FarmCase& farm_case, std::ostream* out) { *out << farm_case.name; }

class Farm : public ::testing::TestWithParam<FarmCase> {};

TEST_P(Farm, runs_and_prints_its_checksum) {
  const TestDir dir;
  const auto farm = ElfFarm::build(dir / "farm", GetParam().options);
  RunOptions options;
  if (GetParam().options.tag == FarmTag::none)
    options.env = {"LD_LIBRARY_PATH=" + farm.library_path};
  const auto result = run({farm.program}, options);
  EXPECT_EQ(result.status, 0) << result.err;
  EXPECT_EQ(result.out, farm.output);
}

INSTANTIATE_TEST_SUITE_P(
    All, Farm,
    ::testing::Values(
        FarmCase{"star_rpath", {}}, FarmCase{"chain_rpath", {.shape = FarmShape::chain}},
        FarmCase{
            "random_runpath",
            {.libraries = 40, .shape = FarmShape::random, .tag = FarmTag::runpath, .functions = 3}},
        FarmCase{"chain_runpath", {.shape = FarmShape::chain, .tag = FarmTag::runpath}},
        FarmCase{"random_environment", {.shape = FarmShape::random, .tag = FarmTag::none}},
        FarmCase{"chain_absolute", {.shape = FarmShape::chain, .tag = FarmTag::absolute}},
        FarmCase{"star_odd_names", {.prefix = "lib odd ", .odd_names = true}},
        FarmCase{"chain_flat", {.shape = FarmShape::chain, .flat = true}},
        FarmCase{"random_dlopen", {.shape = FarmShape::random, .dlopen_roots = true}},
        FarmCase{"no_library", {.libraries = 0}}),
    [](const auto& chosen) { return chosen.param.name; });

TEST(Strace, counts_the_quadratic_search_of_a_star) {
  if (!strace_works()) HEDDLE_SKIP("strace cannot trace here");
  const TestDir dir;
  const auto farm = ElfFarm::build(dir / "farm", {.libraries = 20});
  const auto traced = strace_counts({"env", "A=1", farm.program});
  EXPECT_EQ(traced.run.out, farm.output);
  ASSERT_EQ(traced.starts.size(), 2U);
  const auto& start = traced.start_of("/app");
  // 0 + 1 + ... + 19 misses, and libc.so.6 is looked for in all 20 directories.
  EXPECT_GE(start.failed.size(), 190U + 20U);
  EXPECT_EQ(traced.failed("/app"), start.failed.size());
  EXPECT_THAT(start.opened, ::testing::IsSupersetOf(farm.libraries));
  EXPECT_TRUE(start.failed_later.empty());
}

TEST(Strace, absolute_needed_fails_nowhere_but_for_libc) {
  if (!strace_works()) HEDDLE_SKIP("strace cannot trace here");
  const TestDir dir;
  const auto farm = ElfFarm::build(dir / "farm", {.tag = FarmTag::absolute});
  EXPECT_EQ(strace_counts({farm.program}).failed("/app"), 0U);
}

TEST(Strace, sees_a_dlopen_that_searches) {
  if (!strace_works()) HEDDLE_SKIP("strace cannot trace here");
  const TestDir dir;
  const auto farm = ElfFarm::build(dir / "farm", {.tag = FarmTag::none, .dlopen_roots = true});
  const auto traced =
      strace_counts({farm.program}, {.env = {"LD_LIBRARY_PATH=" + farm.library_path}});
  EXPECT_EQ(traced.run.out, farm.output);
  EXPECT_GE(traced.start_of("/app").failed_later.size(), 45U);
}

TEST(Strace, joins_calls_that_were_interrupted) {
  const auto starts = parse_strace(
      "10 execve(\"/a\", [\"/a\"], 0x0 /* 1 var */) = 0\n"
      "10 openat(AT_FDCWD, \"/x/lib\\\"q.so\", O_RDONLY <unfinished ...>\n"
      "11 execve(\"/b\", [\"/b\"], 0x0 /* 1 var */) = -1 ENOENT (No such file or directory)\n"
      "10 <... openat resumed>) = -1 ENOENT (No such file or directory)\n"
      "10 prlimit64(0, RLIMIT_STACK, NULL, {rlim_cur=8192*1024}) = 0\n"
      "10 newfstatat(AT_FDCWD, \"/data\", 0x0, 0) = -1 ENOENT (No such file or directory)\n"
      "10 openat(AT_FDCWD, \"/y.so.1\", O_RDONLY) = -1 EACCES (Permission denied)\n");
  ASSERT_EQ(starts.size(), 1U);
  EXPECT_THAT(starts[0].failed, ::testing::ElementsAre(::testing::HasSubstr("/x/lib")));
  EXPECT_THAT(starts[0].failed_later, ::testing::ElementsAre(::testing::HasSubstr("/y.so.1")));
}

TEST(WaitUntil, gives_up_at_the_deadline) {
  EXPECT_FALSE(wait_until(std::chrono::milliseconds(20), [] { return false; }));
  int calls = 0;
  EXPECT_TRUE(wait_until(std::chrono::seconds(10), [&] { return ++calls == 3; }));
}

}  // namespace
}  // namespace heddle::test
