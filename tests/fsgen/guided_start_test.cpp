// SPDX-License-Identifier: MIT
// Under fs-gen a program makes no failed open or stat for a library between exec and main, nor at a
// learned dlopen, and its output does not change.

#include "tests/fsgen/run_fixture.hpp"
#include "tests/support/elf_farm.hpp"

namespace heddle::test {
namespace {

class GuidedStarts : public FsGenFixture {
 protected:
  StraceResult traced(const Words& app, const Words& options = {}) const {
    return strace_counts(command(app, options), options_);
  }
};

#define HEDDLE_NEEDS_STRACE()                                   \
  if (!strace_works()) HEDDLE_SKIP("strace cannot trace here"); \
  HEDDLE_NEEDS_UNTRACED_DAEMONS()

struct Layout {
  const char* name;
  FarmShape shape;
  FarmTag tag;
  bool odd_names = false;
  bool learned = false;  ///< the program dlopens them and --learn recorded it
};

class GuidedStart : public GuidedStarts, public ::testing::WithParamInterface<Layout> {};

TEST_P(GuidedStart, hundred_libraries_load_without_a_failed_probe) {
  HEDDLE_NEEDS_STRACE();
  const auto& [name, shape, tag, odd_names, learned] = GetParam();
  const auto farm = ElfFarm::build(dir_ / "farm", {.libraries = 100,
                                                   .shape = shape,
                                                   .tag = tag,
                                                   .odd_names = odd_names,
                                                   .dlopen_roots = learned});
  if (tag == FarmTag::none) options_.env.push_back("LD_LIBRARY_PATH=" + farm.library_path);
  Words options;
  if (learned) {
    const auto first = gen({"-q", "--learn", "--out", dir_ / "map", "--", farm.program});
    ASSERT_EQ(first.out, farm.output) << first.err;
    ASSERT_EQ(first.err, "");
    options = {"--map", dir_ / "map"};
  }
  const auto result = traced({farm.program}, options);
  EXPECT_EQ(result.run.status, 0);
  EXPECT_EQ(result.run.out, farm.output) << result.run.err;
  const auto& start = result.start_of(farm.program);
  EXPECT_THAT(start.failed, IsEmpty());
  EXPECT_THAT(start.failed_later, IsEmpty());
  EXPECT_EQ(report()["probes_with"], 0U);
  EXPECT_EQ(report()["names_unknown"], 0U);
  if (learned || tag == FarmTag::absolute) return;
  EXPECT_GE(start.opened.size(), 100U);
  EXPECT_EQ(report()["libraries"], 102U);  // libc and ld.so are the other two
  EXPECT_GT(report()["probes_without"].get<unsigned>(), shape == FarmShape::chain ? 600U : 4500U);
}

INSTANTIATE_TEST_SUITE_P(
    Layouts, GuidedStart,
    ::testing::Values(Layout{"rpath_random", FarmShape::random, FarmTag::rpath},
                      Layout{"runpath_chain", FarmShape::chain, FarmTag::runpath},
                      Layout{"ld_library_path_random", FarmShape::random, FarmTag::none},
                      Layout{"absolute_random", FarmShape::random, FarmTag::absolute},
                      Layout{"odd_names_star", FarmShape::star, FarmTag::rpath, true},
                      Layout{"learned_runpath", FarmShape::random, FarmTag::runpath, false, true}),
    [](const auto& layout) { return layout.param.name; });

TEST_F(GuidedStarts, dlopen_of_closure_libraries_needs_no_search) {
  HEDDLE_NEEDS_STRACE();
  const auto farm = ElfFarm::build(dir_ / "farm", {.libraries = 300});
  // A second program that needs the same libraries opens them by name and by path, from threads.
  Words flags = {"-Wl,--no-as-needed", "-Wl,--disable-new-dtags", "-pthread"};
  Words words = {dir_ / "opener"};
  for (std::size_t i = 0; i < farm.libraries.size(); ++i) {
    flags.insert(flags.end(), {farm.libraries[i], "-Wl,-rpath," + farm.directories[i]});
    words.push_back(i % 2 ? farm.sonames[i] : farm.libraries[i]);
  }
  build_program({.output = words[0],
                 .source = R"(
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
static int count;
static char** names;
static void* work(void* a) {
  long bad = 0;
  for (int i = 0; i < 3 * count; ++i) {
    void* h = dlopen(names[i % count], RTLD_NOW);
    if (!h) puts(dlerror()), ++bad;
    else dlclose(h);
  }
  return (void*)bad;
}
int main(int c, char** v) {
  pthread_t t[16];
  void* r;
  long bad = 0;
  count = c - 1, names = v + 1;
  for (int i = 0; i < 16; ++i) pthread_create(&t[i], 0, work, 0);
  for (int i = 0; i < 16; ++i) pthread_join(t[i], &r), bad += (long)r;
  printf("%ld bad\n", bad);
})",
                 .flags = flags});
  const auto result = traced(words);
  EXPECT_EQ(result.run.out, "0 bad\n") << result.run.err;
  EXPECT_THAT(result.start_of(words[0]).failed, IsEmpty());
  EXPECT_THAT(result.start_of(words[0]).failed_later, IsEmpty());
  EXPECT_EQ(report()["probes_with"], 0U);
}

/// Proves that the cases above can fail.
TEST_F(GuidedStarts, strace_counts_the_probes_of_an_unguided_start) {
  HEDDLE_NEEDS_STRACE();
  const auto farm = ElfFarm::build(dir_ / "farm", {.libraries = 20});
  const auto result = strace_counts({farm.program});
  EXPECT_EQ(result.run.out, farm.output);
  // 0 + 1 + ... + 19 misses, and libc.so.6 is looked for in all 20 directories.
  EXPECT_GE(result.start_of(farm.program).failed.size(), 190U + 20U);
  const auto opened = ElfFarm::build(dir_ / "opened", {.tag = FarmTag::none, .dlopen_roots = true});
  options_.env.push_back("LD_LIBRARY_PATH=" + opened.library_path);
  EXPECT_GE(strace_counts({opened.program}, options_).start_of(opened.program).failed_later.size(),
            45U);
}

TEST_F(GuidedStarts, a_warm_start_needs_no_daemon) {
  const auto farm = ElfFarm::build(dir_ / "farm", {.libraries = 100, .shape = FarmShape::random});
  options_.deadline = std::chrono::seconds(30);
  // The second start happens while the daemon is stopped; the shell's other programs have run too.
  const auto script =
      "d=$(" + staged_program("fs-mount") +
      " --stats ${HEDDLE_INDEX%/.heddle/index} | sed -n 's/^worker_pid *//p'); " + farm.program +
      " && kill -STOP $d && until grep '^State:.T' /proc/$d/status; do :; done && " + farm.program +
      " && " + farm.program + "; kill -CONT $d";
  const auto ours = run_guided({"/bin/sh", "-c", script, farm.program, "/bin/sed", "/bin/grep"});
  EXPECT_FALSE(ours.timed_out);
  EXPECT_EQ(ours.out, farm.output + "State:\tT (stopped)\n" + farm.output + farm.output)
      << ours.err;
  EXPECT_GE(report().value("guided_processes", 0U), 4U);
  EXPECT_EQ(report().value("probes_with", 1U), 0U);
}

TEST_F(GuidedStarts, programs_with_one_soname_get_their_own_files) {
  const auto a = ElfFarm::build(dir_ / "a", {.libraries = 20, .first_number = 1000});
  const auto b = ElfFarm::build(dir_ / "b", {.libraries = 20, .first_number = 9000});
  const auto map = dir_ / "both.map";
  run_checked({staged_program("fs-resolve"), "build", "-o", map, a.program, b.program}, options_);
  // One shell starts both programs of the map at once.
  const auto ours = run_guided(
      {"/bin/sh", "-c",
       "for i in 1 2 3 4 5 6 7 8; do " + a.program + " & " + b.program + " & done; wait"},
      {"--map", map});
  std::map<std::string, int> lines;
  std::istringstream in(ours.out);
  for (std::string line; std::getline(in, line);) ++lines[line + "\n"];
  EXPECT_EQ(lines, (std::map<std::string, int>{{a.output, 8}, {b.output, 8}})) << ours.err;
  EXPECT_EQ(report()["guided_processes"], 16U);
  EXPECT_EQ(report()["probes_with"], 0U);
}

}  // namespace
}  // namespace heddle::test
