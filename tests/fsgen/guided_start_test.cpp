// SPDX-License-Identifier: MIT
// The promise itself: under fs-gen a program makes no failed open or stat for a library between
// exec and main, and prints what it prints without us.

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <thread>

#include "tests/support/build_elf.hpp"
#include "tests/support/elf_farm.hpp"
#include "tests/support/run.hpp"
#include "tests/support/strace.hpp"
#include "tests/support/test_dir.hpp"

namespace heddle::test {
namespace {

struct Layout {
  const char* name;
  FarmShape shape;
  FarmTag tag;
  bool odd_names = false;
};

class GuidedStart : public ::testing::TestWithParam<Layout> {};

TEST_P(GuidedStart, three_hundred_libraries_without_a_failed_probe) {
  HEDDLE_STAGED(fs_gen, "fs-gen");
  if (!strace_works()) HEDDLE_SKIP("strace cannot trace here");
  HEDDLE_NEEDS_UNTRACED_DAEMONS();
  const TestDir dir;
  FarmOptions farm_options;
  farm_options.libraries = 300;
  farm_options.shape = GetParam().shape;
  farm_options.tag = GetParam().tag;
  farm_options.odd_names = GetParam().odd_names;
  const auto farm = ElfFarm::build(dir / "farm", farm_options);
  RunOptions options;
  options.env = {"XDG_CACHE_HOME=" + dir / "cache"};
  if (GetParam().tag == FarmTag::none)
    options.env.push_back("LD_LIBRARY_PATH=" + farm.library_path);
  const auto json = dir / "report.json";
  const auto traced = strace_counts({fs_gen, "-q", "--json", json, farm.program}, options);
  EXPECT_EQ(traced.run.status, 0);
  EXPECT_EQ(traced.run.out, farm.output) << traced.run.err;
  const auto& start = traced.start_of(farm.program);
  EXPECT_TRUE(start.failed.empty()) << start.failed.size() << " failed, first " << start.failed[0];
  EXPECT_GE(start.opened.size(), 300U);
  const auto report = nlohmann::json::parse(std::ifstream(json));
  EXPECT_EQ(report["probes_with"], 0U);
  EXPECT_EQ(report["libraries"], 302U);  // libc and ld.so are the other two
  EXPECT_GT(report["probes_without"].get<unsigned>(),
            GetParam().shape == FarmShape::chain ? 2000U : 40000U);
}

INSTANTIATE_TEST_SUITE_P(
    Layouts, GuidedStart,
    ::testing::Values(Layout{"rpath_star", FarmShape::star, FarmTag::rpath},
                      Layout{"rpath_chain", FarmShape::chain, FarmTag::rpath},
                      Layout{"rpath_random", FarmShape::random, FarmTag::rpath},
                      Layout{"runpath_star", FarmShape::star, FarmTag::runpath},
                      Layout{"runpath_chain", FarmShape::chain, FarmTag::runpath},
                      Layout{"runpath_random", FarmShape::random, FarmTag::runpath},
                      Layout{"ld_library_path_star", FarmShape::star, FarmTag::none},
                      Layout{"ld_library_path_chain", FarmShape::chain, FarmTag::none},
                      Layout{"ld_library_path_random", FarmShape::random, FarmTag::none},
                      Layout{"odd_names_star", FarmShape::star, FarmTag::rpath, true}),
    [](const auto& layout) { return layout.param.name; });

TEST(GuidedStarts, dlopens_of_unknown_names_print_what_they_print_and_the_start_itself_is_clean) {
  HEDDLE_STAGED(fs_gen, "fs-gen");
  if (!strace_works()) HEDDLE_SKIP("strace cannot trace here");
  HEDDLE_NEEDS_UNTRACED_DAEMONS();
  // Names that only the running program knows are ld.so's to find, or --learn's (learn_test.cpp).
  // A star's would be 45,000 probes, each of them traced.
  for (const auto& [shape, libraries] : {std::pair{FarmShape::star, std::size_t{100}},
                                         std::pair{FarmShape::chain, std::size_t{300}}}) {
    const TestDir dir;
    const auto farm = ElfFarm::build(
        dir / "farm",
        {.libraries = libraries, .shape = shape, .tag = FarmTag::rpath, .dlopen_roots = true});
    RunOptions options;
    options.env = {"XDG_CACHE_HOME=" + dir / "cache"};
    const auto traced = strace_counts({fs_gen, "-q", farm.program}, options);
    EXPECT_EQ(traced.run.out, farm.output) << traced.run.err;
    EXPECT_EQ(traced.start_of(farm.program).failed, std::vector<std::string>{});
  }
}

TEST(GuidedStarts, what_is_in_the_closure_is_dlopened_without_a_search_and_needs_no_learning) {
  HEDDLE_STAGED(fs_gen, "fs-gen");
  if (!strace_works()) HEDDLE_SKIP("strace cannot trace here");
  HEDDLE_NEEDS_UNTRACED_DAEMONS();
  const TestDir dir;
  const auto farm = ElfFarm::build(dir / "farm", {.libraries = 300});
  // A second program that needs the same libraries opens them by name and by path, from threads.
  std::vector<std::string> flags = {"-Wl,--no-as-needed", "-Wl,--disable-new-dtags", "-pthread"};
  for (std::size_t i = 0; i < farm.libraries.size(); ++i) {
    flags.push_back(farm.libraries[i]);
    flags.push_back("-Wl,-rpath," + farm.directories[i]);
  }
  const auto app = build_program(
      {.output = dir / "opener",
       .source = "#include <dlfcn.h>\n#include <pthread.h>\n#include <stdio.h>\n"
                 "static int count; static char** names;\n"
                 "static void* work(void* a) { long bad = 0; for (int r = 0; r < 3; ++r)\n"
                 "for (int i = 0; i < count; ++i) { void* h = dlopen(names[i], RTLD_NOW);\n"
                 "if (!h) { puts(dlerror()); ++bad; } else dlclose(h); } return (void*)bad; }\n"
                 "int main(int c, char** v) { pthread_t t[16]; void* r; long bad = 0;\n"
                 "count = c - 1; names = v + 1;\n"
                 "for (int i = 0; i < 16; ++i) pthread_create(&t[i], 0, work, 0);\n"
                 "for (int i = 0; i < 16; ++i) { pthread_join(t[i], &r); bad += (long)r; }\n"
                 "printf(\"%ld bad\\n\", bad); return 0; }",
       .flags = flags});
  RunOptions options;
  options.env = {"XDG_CACHE_HOME=" + dir / "cache"};
  std::vector<std::string> command = {fs_gen, "-q", "--json", dir / "report.json", app};
  for (std::size_t i = 0; i < farm.libraries.size(); ++i)
    command.push_back(i % 2 ? farm.sonames[i] : farm.libraries[i]);
  const auto traced = strace_counts(command, options);
  EXPECT_EQ(traced.run.out, "0 bad\n") << traced.run.err;
  const auto& start = traced.start_of(app);
  EXPECT_EQ(start.failed, std::vector<std::string>{});
  EXPECT_EQ(start.failed_later, std::vector<std::string>{});
  EXPECT_EQ(nlohmann::json::parse(std::ifstream(dir / "report.json"))["probes_with"], 0U);
}

TEST(GuidedStarts, a_warm_start_needs_no_daemon) {
  HEDDLE_STAGED(fs_gen, "fs-gen");
  const TestDir dir;
  const auto farm = ElfFarm::build(dir / "farm", {.libraries = 100, .shape = FarmShape::random});
  RunOptions options;
  options.env = {"XDG_CACHE_HOME=" + dir / "cache"};
  options.deadline = std::chrono::seconds(30);
  // APP's own second start, while the daemon that serves its mount is stopped. The shell's other
  // programs were started once before, too.
  const auto script =
      "d=$(" + staged_program("fs-mount") +
      " --stats ${HEDDLE_INDEX%/.heddle/index} | sed -n 's/^worker_pid *//p'); " + farm.program +
      " && kill -STOP $d && until grep '^State:.T' /proc/$d/status; do :; done && " + farm.program +
      " && " + farm.program + "; kill -CONT $d";
  const auto ours = run({fs_gen, "-q", "--json", dir / "report.json", "--", "/bin/sh", "-c", script,
                         farm.program, "/bin/sed", "/bin/grep"},
                        options);
  EXPECT_FALSE(ours.timed_out);
  EXPECT_EQ(ours.out, farm.output + "State:\tT (stopped)\n" + farm.output + farm.output)
      << ours.err;
  const auto report = nlohmann::json::parse(std::ifstream(dir / "report.json"), nullptr, false);
  EXPECT_GE(report.value("guided_processes", 0U), 4U);
  EXPECT_EQ(report.value("probes_with", 1U), 0U);
}

TEST(GuidedStarts, two_programs_with_one_soname_each_get_their_own_at_once) {
  HEDDLE_STAGED(fs_gen, "fs-gen");
  HEDDLE_STAGED(fs_resolve, "fs-resolve");
  const TestDir dir;
  std::vector<ElfFarm> farms;
  for (std::uint64_t first : {1000U, 9000U}) {
    FarmOptions options;
    options.libraries = 20;
    options.prefix = "libx";
    options.first_number = first;
    farms.push_back(ElfFarm::build(dir / ("farm" + std::to_string(first)), options));
  }
  ASSERT_NE(farms[0].output, farms[1].output);
  RunOptions options;
  options.env = {"XDG_CACHE_HOME=" + dir / "cache"};
  const auto map = dir / "both.map";
  run_checked({fs_resolve, "build", "-o", map, farms[0].program, farms[1].program}, options);
  // One mount, both programs of the map in turn and at once below one shell.
  const auto script = "for i in 1 2 3 4 5 6 7 8; do " + farms[0].program + " & " +
                      farms[1].program + " & done; wait";
  const auto json = dir / "report.json";
  const auto ours =
      run({fs_gen, "-q", "--json", json, "--map", map, "/bin/sh", "-c", script}, options);
  std::string expected;
  std::size_t first = 0;
  std::size_t second = 0;
  for (std::size_t at = 0; at < ours.out.size();) {
    const auto end = ours.out.find('\n', at) + 1;
    const auto line = ours.out.substr(at, end - at);
    first += line == farms[0].output;
    second += line == farms[1].output;
    at = end;
  }
  EXPECT_EQ(first, 8U) << ours.out << ours.err;
  EXPECT_EQ(second, 8U);
  const auto report = nlohmann::json::parse(std::ifstream(json));
  EXPECT_EQ(report["guided_processes"], 16U);
  EXPECT_EQ(report["probes_with"], 0U);
}

}  // namespace
}  // namespace heddle::test
