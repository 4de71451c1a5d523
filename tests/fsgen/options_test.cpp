// SPDX-License-Identifier: MIT
// fs-gen --loader env, --stage, --compare, --json and --out.

#include "tests/fsgen/run_fixture.hpp"
#include "tests/support/elf_farm.hpp"

namespace heddle::test {
namespace {

class FsGenOptions : public FsGenFixture {};

TEST_F(FsGenOptions, loader_env_loads_from_the_mount_and_reports_no_counters) {
  const auto farm = ElfFarm::build(
      dir_ / "farm", {.libraries = 20, .shape = FarmShape::random, .tag = FarmTag::runpath});
  const auto map = dir_ / "a.map";
  ASSERT_EQ(gen({"-q", "--out", map, farm.program}).status, 0);
  const auto ours =
      gen({"--loader", "env", "--json", dir_ / "report.json", "--map", map, "--", farm.program});
  EXPECT_EQ(ours.out, farm.output) << ours.err;
  EXPECT_EQ(report()["loader"], "environment");
  EXPECT_EQ(report()["limits"].size(), 2U) << "DT_RPATH, dladdr";
  for (const char* key : {"probes_with", "names_guided", "guided_processes"})
    EXPECT_FALSE(report().contains(key)) << key;
  // Without the auditor the libraries still come from the mount.
  options_.env.insert(options_.env.end(), {"LD_DEBUG=libs", "LD_DEBUG_OUTPUT=" + (dir_ / "debug")});
  EXPECT_EQ(run_guided({farm.program}, {"--loader", "env", "--map", map}).out, farm.output);
  std::size_t inits = 0;
  for (const auto& entry : fs::directory_iterator(dir_.path())) {
    if (!entry.path().filename().string().starts_with("debug.")) continue;
    std::ifstream in(entry.path());
    for (std::string line; std::getline(in, line);)
      inits += line.find("calling init: " + (dir_ / "tmp/")) != line.npos &&
               line.find("/libfarm") != line.npos;
  }
  EXPECT_EQ(inits, 20U);
}

TEST_F(FsGenOptions, loader_env_puts_the_mount_before_the_user_s_path) {
  options_.env.push_back("LD_LIBRARY_PATH=/my/own");
  const auto ours = gen({"-q", "--loader", "env", "/bin/sh", "-c", "echo $LD_LIBRARY_PATH"});
  EXPECT_TRUE(ours.out.starts_with(dir_ / "tmp/")) << ours.out;
  EXPECT_TRUE(ours.out.ends_with(":/my/own\n")) << ours.out;
}

TEST_F(FsGenOptions, stage_option_stages_the_mounted_files) {
  fs::create_directory(dir_ / "node");
  options_.cwd = dir_.path();
  for (const char* way : {"--no-share", "--budget=1G"}) {
    const auto ours = run({fs_gen_, "-q", way, "--stage", "node", "/bin/sh", "-c",
                           "for i in $(seq 1000); do \"$0\" --stats --json "
                           "\"${HEDDLE_INDEX%/.heddle/index}\" | grep -q '\"staging\": \"done\"' "
                           "&& exit 7; sleep 0.01; done",
                           staged_program("fs-mount")},
                          options_);
    EXPECT_EQ(ours.status, 7) << ours.err;
  }
  const auto copies = dir_ / ("node/heddle-" + std::to_string(::geteuid()) + "/objects");
  EXPECT_FALSE(fs::is_empty(copies));
}

TEST_F(FsGenOptions, compare_runs_both_ways_and_prints_the_ratio) {
  const auto farm = ElfFarm::build(dir_ / "farm", {.libraries = 100});
  const auto log = dir_ / "log";
  const auto script = write_text_file(
      dir_ / "script",
      "#!/bin/sh\necho ${LD_AUDIT:+guided} >> '" + log + "'\n'" + farm.program + "'\n", 0755);
  const auto ours = gen({"--compare", "4", "--json", dir_ / "report.json", script, farm.program});
  EXPECT_EQ(ours.status, 0) << ours.err;
  EXPECT_EQ(ours.out, "") << "--compare drops APP's output";
  std::ifstream in(log);
  std::string order;
  for (std::string line; std::getline(in, line);) order += line.empty() ? 'p' : 'g';
  EXPECT_EQ(order, "pgpgpgpg");
  const auto json = report();
  EXPECT_EQ(json["runs"], 4U);
  EXPECT_EQ(json["plain_ns"].size(), 4U);
  EXPECT_EQ(json["guided_ns"].size(), 4U);
  EXPECT_GT(json["ratio"].get<double>(), 0.0);
  EXPECT_EQ(run_guided({"/bin/sh", "-c", "exit 9"}, {"--compare", "2"}).status, 9);
  EXPECT_EQ(report()["failed_plain"], 2);
  EXPECT_EQ(report()["failed_guided"], 2);
}

TEST_F(FsGenOptions, map_written_by_out_is_accepted_by_map) {
  const auto map = dir_ / "kept.map";
  ASSERT_EQ(gen({"-q", "--out", map, "/usr/bin/git", "--version"}).status, 0);
  EXPECT_EQ(run_guided({"/usr/bin/git", "--version"}, {"--map", map}).status, 0);
  EXPECT_TRUE(report()["guided"].get<bool>());
  // An unmapped program runs unguided; its mapped children are guided.
  EXPECT_EQ(run_guided({"/bin/sh", "-c", "/usr/bin/git --version"}, {"--map", map}).status, 0);
  EXPECT_FALSE(report()["guided"].get<bool>());
  EXPECT_EQ(report()["unguided_reason"], "not in the map");
  EXPECT_EQ(report()["guided_processes"], 1U);
}

}  // namespace
}  // namespace heddle::test
