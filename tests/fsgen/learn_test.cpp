// SPDX-License-Identifier: MIT
// fs-gen --learn: what a run opens late and executes is in the map of the next run.

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "tests/fsgen/run_fixture.hpp"
#include "tests/support/build_elf.hpp"
#include "tests/support/elf_farm.hpp"
#include "tests/support/run.hpp"
#include "tests/support/strace.hpp"
#include "tests/support/test_dir.hpp"

namespace heddle::test {
namespace {

namespace fs = std::filesystem;

class Learn : public FsGenFixture {
 protected:
  RunResult learn(std::vector<std::string> words) const {
    words.insert(words.begin(), {"-q", "--learn", "--out", map(), "--"});
    return gen(std::move(words));
  }
  std::vector<std::string> with_map(const std::vector<std::string>& words) const {
    std::vector<std::string> all{fs_gen_, "-q", "--json", json(), "--map", map(), "--"};
    all.insert(all.end(), words.begin(), words.end());
    return all;
  }
  std::string map() const { return dir_ / "learned.map"; }
  std::string json() const { return dir_ / "report.json"; }
};

struct LearnCase {
  const char* name;
  FarmTag tag;
  FarmShape shape = FarmShape::random;
};
class LearnFarm : public Learn, public ::testing::WithParamInterface<LearnCase> {};

TEST_P(LearnFarm, three_hundred_dlopens_without_a_failed_probe) {
  if (!strace_works()) HEDDLE_SKIP("strace cannot trace here");
  HEDDLE_NEEDS_UNTRACED_DAEMONS();
  FarmOptions farm_options;
  farm_options.libraries = 300;
  farm_options.shape = GetParam().shape;
  farm_options.tag = GetParam().tag;
  farm_options.dlopen_roots = true;
  const auto farm = ElfFarm::build(dir_ / "farm", farm_options);
  if (farm_options.tag == FarmTag::none)
    options_.env.push_back("LD_LIBRARY_PATH=" + farm.library_path);
  const auto first = learn({farm.program});
  ASSERT_EQ(first.out, farm.output) << first.err;
  ASSERT_EQ(first.err, "");
  const auto traced = strace_counts(with_map({farm.program}), options_);
  EXPECT_EQ(traced.run.out, farm.output) << traced.run.err;
  const auto& start = traced.start_of(farm.program);
  EXPECT_EQ(start.failed, std::vector<std::string>{});
  EXPECT_TRUE(start.failed_later.empty())
      << start.failed_later.size() << " failed, first " << start.failed_later[0];
  EXPECT_EQ(report()["probes_with"], 0U);
  EXPECT_EQ(report()["names_unknown"], 0U);
}

INSTANTIATE_TEST_SUITE_P(Tags, LearnFarm,
                         ::testing::Values(LearnCase{"rpath", FarmTag::rpath},
                                           LearnCase{"rpath_star", FarmTag::rpath, FarmShape::star},
                                           LearnCase{"runpath", FarmTag::runpath},
                                           LearnCase{"runpath_chain", FarmTag::runpath,
                                                     FarmShape::chain},
                                           LearnCase{"ld_library_path", FarmTag::none}),
                         [](const auto& learn_case) { return learn_case.param.name; });

TEST_F(Learn, executed_programs_are_guided_in_the_next_run) {
  const auto farm = ElfFarm::build(dir_ / "farm", {.libraries = 10});
  const auto script = write_text_file(
      dir_ / "script", "#!/bin/sh\nd=" + (dir_.path() + "/farm") + "\n$d/app\n", 0755);
  EXPECT_EQ(learn({script}).out, farm.output);
  EXPECT_EQ(run(with_map({script}), options_).out, farm.output);
  EXPECT_EQ(report()["guided_processes"], 2U);
  EXPECT_EQ(report()["unguided_processes"], 0U);
  EXPECT_EQ(report()["probes_with"], 0U);
}

TEST_F(Learn, a_program_started_with_another_environment_is_left_out) {
  for (const char* name : {"a", "b"})
    build_library({dir_ / (std::string(name) + "/libx.so.1"),
                   "int x(void) { return " + std::to_string(name[0]) + "; }",
                   {"-Wl,-soname,libx.so.1"}});
  const auto child = build_program(
      {dir_ / "child",
       "int x(void); int main(void) { return x(); }",
       {dir_ / "a/libx.so.1", "-Wl,-rpath," + (dir_ / "a"), "-Wl,--enable-new-dtags"}});
  const auto script = write_text_file(
      dir_ / "script",
      "#!/bin/sh\nLD_LIBRARY_PATH=" + (dir_ / "b") + " " + dir_.path() + "/chil''d\n", 0755);
  EXPECT_EQ(learn({script}).status, 'b');
  EXPECT_EQ(run(with_map({script}), options_).status, 'b');
  EXPECT_EQ(run(with_map({child}), options_).status, 'a');
}

TEST_F(Learn, one_name_for_two_files_is_left_to_the_loader) {
  for (const char* name : {"a", "b"}) {
    build_library({dir_ / (std::string(name) + "/libp.so"),
                   "int p(void) { return " + std::to_string(name[0]) + "; }",
                   {"-Wl,-soname,libp-" + std::string(name)}});
    build_library({dir_ / ("libopen" + std::string(name) + ".so"),
                   "#include <dlfcn.h>\nint open_" + std::string(name) +
                       "(void) { void* h = dlopen(\"libp.so\", RTLD_NOW);\n"
                       "return h ? ((int (*)(void))dlsym(h, \"p\"))() : 0; }",
                   {"-Wl,-rpath," + (dir_ / name), "-Wl,--enable-new-dtags",
                    "-Wl,-soname,libopen" + std::string(name) + ".so"}});
  }
  // The program forks, so that each library is opened by a process that has not the other one yet.
  const auto app = build_program(
      {dir_ / "app",
       "#include <stdio.h>\n#include <string.h>\nint open_a(void), open_b(void);\n"
       "int main(int c, char** v) { putchar(v[1][0] == 'a' ? open_a() : open_b()); return 0; }",
       {dir_ / "libopena.so", dir_ / "libopenb.so", "-Wl,-rpath," + dir_.path()}});
  const std::vector<std::string> words{"/bin/sh", "-c", app + " a; " + app + " b"};
  EXPECT_EQ(learn(words).out, "ab");
  EXPECT_EQ(run(with_map(words), options_).out, "ab");
}

TEST_F(Learn, numpy_needs_fewer_probes) {
  const fs::path numpy = "/usr/lib/python3/dist-packages/numpy";
  if (!fs::exists(numpy)) HEDDLE_SKIP("numpy is not installed");
  const std::vector<std::string> words{"/usr/bin/python3", "-c",
                                       "import numpy; print(numpy.arange(10).sum())"};
  const auto json_before = dir_ / "before.json";
  std::vector<std::string> plain{fs_gen_, "-q", "--json", json_before};
  plain.insert(plain.end(), words.begin(), words.end());
  EXPECT_EQ(run(plain, options_).out, "45\n");
  const auto before = nlohmann::json::parse(std::ifstream(json_before));
  EXPECT_EQ(learn(words).out, "45\n");
  EXPECT_EQ(run(with_map(words), options_).out, "45\n");
  EXPECT_LT(report()["names_unknown"], before["names_unknown"]);
  EXPECT_LE(report()["probes_with"], before["probes_with"]);
  EXPECT_EQ(report()["probes_with"], 0U);
}

TEST_F(Learn, usage_and_failures_are_told) {
  EXPECT_EQ(run({fs_gen_, "--learn", "/bin/true"}, options_).status, 2);
  EXPECT_EQ(run({fs_gen_, "--learn", "--map", "m", "--out", "o", "/bin/true"}, options_).status, 2);
  const auto nowhere = run(
      {fs_gen_, "-q", "--learn", "--out", "/proc/none/map", "/bin/sh", "-c", "exit 4"}, options_);
  EXPECT_EQ(nowhere.status, 3);  // before APP runs
  EXPECT_NE(nowhere.err.find("/proc/none/map"), std::string::npos) << nowhere.err;
  EXPECT_EQ(learn({"/bin/sh", "-c", "exit 5"}).status, 5);
  EXPECT_TRUE(fs::exists(map()));
}

TEST_F(Learn, a_log_that_somebody_fills_with_anything_does_no_harm) {
  // The variable is inherited: any process of the run could write there.
  const auto ours =
      learn({"/bin/sh", "-c", "head -c 100000 /dev/urandom >> \"$HEDDLE_LEARN\"; /bin/true"});
  EXPECT_EQ(ours.status, 0) << ours.err;
  EXPECT_EQ(run(with_map({"/bin/sh", "-c", "exit 6"}), options_).status, 6);
}

}  // namespace
}  // namespace heddle::test
