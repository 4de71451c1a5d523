// SPDX-License-Identifier: MIT
// A map whose files are not what they were: APP runs as ld.so would run it, and it is said.

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "tests/support/build_elf.hpp"
#include "tests/support/run.hpp"
#include "tests/support/test_dir.hpp"

namespace heddle::test {
namespace {

namespace fs = std::filesystem;

/// A program whose RUNPATH names two directories, old and new; libx.so.1 moves from one to the
/// other.
class StaleMap : public ::testing::Test {
 protected:
  void SetUp() override {
    fs_gen_ = staged_program("fs-gen");
    if (fs_gen_.empty()) HEDDLE_SKIP("fs-gen is not installed in $HEDDLE_STAGE");
    for (const char* directory : {"tmp", "old", "new"}) fs::create_directory(dir_ / directory);
    options_.env = {"TMPDIR=" + dir_ / "tmp", "XDG_CACHE_HOME=" + dir_ / "cache"};
    library("old", "1");
    app_ = build_program(
        {dir_ / "app",
         "int x(void); int main(void) { return x(); }",
         {dir_ / "old/libx.so.1", "-Wl,-rpath," + dir_ / "old" + ":" + dir_ / "new"}});
    EXPECT_EQ(run({staged_program("fs-resolve"), "build", "-o", dir_ / "a.map", app_, "/bin/true"},
                  options_)
                  .status,
              0);
  }
  void library(const std::string& directory, const std::string& answer) {
    build_library({dir_ / (directory + "/libx.so.1"),
                   "int x(void) { return " + answer + "; }",
                   {"-Wl,-soname,libx.so.1"}});
  }
  RunResult start(std::vector<std::string> options, const std::string& app) {
    options.insert(options.begin(), fs_gen_);
    for (const auto& word :
         {std::string("--json"), dir_ / "report.json", std::string("--map"), dir_ / "a.map", app})
      options.push_back(word);
    return run(options, options_);
  }
  nlohmann::json report() const {
    return nlohmann::json::parse(std::ifstream(dir_ / "report.json"));
  }

  TestDir dir_;
  std::string fs_gen_;
  std::string app_;
  RunOptions options_;
};

TEST_F(StaleMap, a_library_that_has_moved_is_found_where_it_is) {
  fs::rename(dir_ / "old/libx.so.1", dir_ / "new/libx.so.1");
  for (const auto& options : {std::vector<std::string>{}, {"--via", "direct"}}) {
    const auto ours = start(options, app_);
    EXPECT_EQ(ours.status, 1) << ours.err;
    EXPECT_NE(ours.err.find("a.map is out of date: " + dir_ / "old/libx.so.1: missing"),
              std::string::npos)
        << ours.err;
    EXPECT_NE(ours.err.find("hint:"), std::string::npos) << ours.err;
    EXPECT_FALSE(report()["guided"].get<bool>());
    const auto why = report()["unguided_reason"].get<std::string>();
    EXPECT_NE(why.find("out of date"), std::string::npos) << why;
  }
  EXPECT_EQ(start({"--via", "direct"}, "/bin/true").status, 0);
  EXPECT_TRUE(report()["guided"].get<bool>()) << "none of its files has changed";
}

TEST_F(StaleMap, a_library_that_was_rebuilt_is_taken_as_it_is) {
  library("old", "2; /* rebuilt, and longer */ } int y(void) { return 0");
  const auto ours = start({"--via", "direct"}, app_);
  EXPECT_EQ(ours.status, 2) << ours.err;
  EXPECT_FALSE(report()["guided"].get<bool>());
}

TEST_F(StaleMap, one_that_was_only_touched_is_guided) {
  const auto lib = dir_ / "old/libx.so.1";
  fs::last_write_time(lib, fs::last_write_time(lib) + std::chrono::hours(1));
  const auto ours = start({"--via", "direct"}, app_);
  EXPECT_EQ(ours.status, 1) << ours.err;
  EXPECT_EQ(ours.err.find("out of date"), std::string::npos) << ours.err;
  EXPECT_TRUE(report()["guided"].get<bool>());
}

}  // namespace
}  // namespace heddle::test
