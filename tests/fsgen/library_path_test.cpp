// SPDX-License-Identifier: MIT
// LD_LIBRARY_PATH that changes between the map and the start: the file is ld.so's, and it is said.

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "tests/fsgen/run_fixture.hpp"
#include "tests/support/build_elf.hpp"
#include "tests/support/run.hpp"
#include "tests/support/test_dir.hpp"

namespace heddle::test {
namespace {

class LibraryPath : public FsGenFixture {
 protected:
  void SetUp() override {
    FsGenFixture::SetUp();
    if (IsSkipped()) return;
    for (const auto& [directory, answer] : {std::pair{"a", "1"}, {"b", "2"}})
      build_library({dir_ / (std::string(directory) + "/libx.so.1"),
                     "int x(void) { return " + std::string(answer) + "; }",
                     {"-Wl,-soname,libx.so.1"}});
    app_ = build_program(
        {dir_ / "app", "int x(void); int main(void) { return x(); }", {dir_ / "a/libx.so.1"}});
    under_b_ = options_;
    options_.env.push_back("LD_LIBRARY_PATH=" + dir_ / "a");
    under_b_.env.push_back("LD_LIBRARY_PATH=" + dir_ / "b");
  }

  std::string app_;
  RunOptions under_b_;
};

TEST_F(LibraryPath, a_child_that_env_gives_another_one_loads_what_it_says) {
  const auto ours = run({fs_gen_, "--json", dir_ / "report.json", "/usr/bin/env",
                         "LD_LIBRARY_PATH=" + dir_ / "b", app_},
                        options_);
  EXPECT_EQ(ours.status, 2) << ours.err;
  EXPECT_NE(ours.err.find("LD_LIBRARY_PATH is not as in the map"), std::string::npos) << ours.err;
  EXPECT_EQ(report()["other_library_path"], 1U);
  EXPECT_EQ(report()["guided_processes"], 1U) << "env itself";
  const auto same = run({fs_gen_, "--json", dir_ / "report.json", "/usr/bin/env", app_}, options_);
  EXPECT_EQ(same.status, 1) << same.err;
  EXPECT_EQ(report()["guided_processes"], 2U);
}

TEST_F(LibraryPath, a_map_used_under_another_one_says_why_it_did_not_guide) {
  const auto map = dir_ / "a.map";
  ASSERT_EQ(run({staged_program("fs-resolve"), "build", "-o", map, app_}, options_).status, 0);
  const std::vector<std::string> command = {fs_gen_, "--json", dir_ / "report.json",
                                            "--map", map,      app_};
  EXPECT_EQ(run(command, options_).status, 1);
  EXPECT_TRUE(report()["guided"].get<bool>());
  const auto other = run(command, under_b_);
  EXPECT_EQ(other.status, 2) << other.err;
  EXPECT_FALSE(report()["guided"].get<bool>());
  const auto why = report()["unguided_reason"].get<std::string>();
  EXPECT_NE(why.find("LD_LIBRARY_PATH"), std::string::npos) << why;
  EXPECT_NE(why.find(dir_ / "a"), std::string::npos) << why;
  EXPECT_NE(other.err.find(why), std::string::npos) << other.err;
}

TEST_F(LibraryPath, loader_env_takes_no_notice_of_it) {
  const auto ours =
      run({fs_gen_, "--loader", "env", "/usr/bin/env", "LD_LIBRARY_PATH=" + dir_ / "b", app_},
          options_);
  EXPECT_EQ(ours.status, 2) << ours.err;
  // Our own LD_LIBRARY_PATH, which leads into the mount, must not unguide anybody either.
  EXPECT_EQ(run({fs_gen_, "-q", "--loader", "env", app_}, options_).status, 1);
  EXPECT_EQ(run({fs_gen_, "-q", "--", fs_gen_, "-q", "--loader", "env", app_}, options_).status, 1);
}

TEST_F(LibraryPath, a_map_tells_the_one_it_was_made_with) {
  const auto map = dir_ / "a.map";
  const auto fs_resolve = staged_program("fs-resolve");
  RunOptions relative = options_;
  relative.env.back() = "LD_LIBRARY_PATH=a;" + dir_ / "none";
  relative.cwd = dir_.path();
  ASSERT_EQ(run({fs_resolve, "build", "-o", map, app_}, relative).status, 0);
  const std::string expected = dir_ / "a" + ":" + dir_ / "none";
  const auto json = nlohmann::json::parse(run({fs_resolve, "show", "--json", map}).out);
  EXPECT_EQ(json["programs"][0]["ld_library_path"], expected);
  const auto text = run({fs_resolve, "show", map}).out;
  EXPECT_NE(text.find("LD_LIBRARY_PATH " + expected + "\n"), std::string::npos) << text;
}

}  // namespace
}  // namespace heddle::test
