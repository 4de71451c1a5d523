// SPDX-License-Identifier: MIT
//
// What a stranger's `./dev demo` prints, of small programs.
#include <nlohmann/json.hpp>
#include <set>

#include "tests/support/prelude.hpp"

namespace heddle::test {
namespace {

class Demo : public ::testing::Test {
 protected:
  RunResult demo(const Strings& options) {
    const char* stage = std::getenv("HEDDLE_STAGE");
    return run(Strings{HEDDLE_DEMO, "--stage", stage ? stage : "", "--json", json_, "--libraries",
                       "30", "--packages", "5"} +
                   options,
               {.env = {"TMPDIR=" + dir_.path(), "HOME=" + dir_.path()},
                .deadline = std::chrono::minutes(4)});
  }
  TestDir dir_;
  std::string json_ = dir_ / "demo.json";
};

TEST_F(Demo, shows_each_program_cold_and_warm_with_and_without_heddle) {
  HEDDLE_STAGED(fs_gen, "fs-gen");
  const auto done = demo({});
  ASSERT_EQ(done.status, 0) << done.out << done.err;
  const auto rows = nlohmann::json::parse(value_or_throw(read_file(json_))).at("rows");
  std::set<std::string> programs;
  for (const auto& row : rows) {
    programs.insert(row.at("program"));
    EXPECT_THAT(done.out, HasSubstr(row.at("program").get<std::string>()));
    if (row.contains("absent")) continue;
    EXPECT_FALSE(row.at("without").at("stopped").get<bool>());
    EXPECT_GT(row.at("without").at("operations").get<int>(), 0);
  }
  EXPECT_EQ(programs.size(), 4U);
  // 30 libraries by RPATH: about 450 paths that do not exist, none with heddle. (How many requests
  // are left depends on the mount's device number: with another one the cached map is not used.)
  const auto& cold = rows.at(1);
  EXPECT_EQ(cold.at("start"), "cold");
  EXPECT_GT(cold.at("without").at("operations").get<int>(), 450);
  EXPECT_LT(cold.at("with").at("operations").get<int>(),
            cold.at("without").at("operations").get<int>());
  const auto& bundle = rows.at(2);
  EXPECT_EQ(bundle.at("start"), "bundle");
  EXPECT_LT(bundle.at("with").at("operations").get<int>(), 60);
  EXPECT_EQ(mounts_with(dir_.path()), 0U);
}

TEST_F(Demo, shows_a_start_that_was_stopped_as_a_lower_bound) {
  HEDDLE_STAGED(fs_gen, "fs-gen");
  const auto done = demo({"--limit", "0.02"});
  ASSERT_EQ(done.status, 0) << done.out << done.err;
  EXPECT_THAT(done.out, ::testing::ContainsRegex("first +> 0.02 s +\\([0-9]+\\)"));
  EXPECT_EQ(mounts_with(dir_.path()), 0U);
}

TEST_F(Demo, names_programs_that_the_machine_does_not_have) {
  HEDDLE_STAGED(fs_gen, "fs-gen");
  fs::create_directories(dir_ / "bin");
  for (const char* program : {"sh", "cc", "as", "ld"})
    fs::create_symlink("/usr/bin/" + std::string(program), dir_ / ("bin/" + std::string(program)));
  const auto path = "PATH=" + dir_ / "bin";
  const auto done = run({"env", path, HEDDLE_DEMO, "--stage", std::getenv("HEDDLE_STAGE"),
                         "--libraries", "4", "--packages", "2"},
                        {.env = {"TMPDIR=" + dir_.path(), "HOME=" + dir_.path()}});
  ASSERT_EQ(done.status, 0) << done.out << done.err;
  EXPECT_THAT(done.out, HasSubstr("not run: mpicc.openmpi is absent"));
  EXPECT_THAT(done.out, HasSubstr("not run: Debian's package lammps is absent"));
}

}  // namespace
}  // namespace heddle::test
