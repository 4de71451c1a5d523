// SPDX-License-Identifier: MIT
// Many runs: the matrix, the baseline, and published real traces.
#include <algorithm>
#include <filesystem>
#include <sstream>

#include "record/diff/matrix.hpp"
#include "tests/diff/fs_diff_support.hpp"

namespace heddle {
namespace {

const std::string kData = HEDDLE_DIFF_DATA;

class Matrix : public FsDiff {};
class Baseline : public FsDiff {};

}  // namespace

TEST_F(Matrix, keeps_real_runs_within_distance_9) {
  std::vector<std::string> arguments{"--matrix", "--op", "open"};
  for (const auto& entry : std::filesystem::directory_iterator(kData))
    if (entry.path().extension() == ".out") arguments.push_back(entry.path());
  const auto j = json(arguments);
  EXPECT_EQ(j["runs"].size(), 22U);
  EXPECT_EQ(j["max_distance"], 9);
  for (std::size_t i = 0; i < 22; ++i)
    for (std::size_t k = 0; k < 22; ++k) EXPECT_EQ(j["distances"][i][k], j["distances"][k][i]);
  EXPECT_NE(run(arguments).out.find("fuse-patch_27Jun2024.out#3"), std::string::npos);
}

TEST_F(Matrix, compares_the_runs_of_one_file_separately) {
  const std::string many = kData + "/fuse-patch_27Jun2024.out";
  const std::string one = kData + "/kind-patch_2Aug2023.out";
  EXPECT_NE(run({many, one, "--op", "open"}).err.find(many), std::string::npos);
  EXPECT_LE(json({many, one, "--op", "open"})["distance"], 9);
  EXPECT_EQ(json({many + "#2", many + "#3", "--op", "open"})["distance"], 0);
  EXPECT_EQ(json({many + "#2", one, "--op", "open"})["a"]["runs_in_file"], 3);
  EXPECT_EQ(run({many + "#4", one}).status, 2);
}

TEST_F(Matrix, marks_a_distant_run_as_outlier) {
  std::vector<std::string> names{"--matrix"};
  for (int i = 0; i < 4; ++i)
    names.push_back(opens("near" + std::to_string(i), {"/1", "/2", "/3"}));
  names.push_back(opens("far", {"/a", "/b", "/c", "/d", "/e"}));
  const auto j = json(names);
  ASSERT_EQ(j["tree"].size(), 4U);
  EXPECT_EQ(j["tree"][2]["height"], 0.0);
  EXPECT_EQ(j["tree"][3]["height"], 5.0);
  ASSERT_EQ(j["outliers"].size(), 1U);
  EXPECT_TRUE(std::string(j["outliers"][0]).ends_with("/far"));
  EXPECT_TRUE(std::string(j["newick"]).ends_with(");"));
  EXPECT_EQ(run(names).status, 1);
  names.pop_back();
  EXPECT_EQ(run(names).status, 0);
  EXPECT_TRUE(json(names)["outliers"].empty());
}

TEST_F(Matrix, groups_equal_runs_which_are_no_outliers) {
  // 80 runs of three kinds, a pair of its own and two single ones, one of them close.
  std::vector<std::string> names{"--matrix"};
  for (int i = 0; i < 80; ++i)
    names.push_back(
        opens("run" + std::to_string(i),
              {"/1", "/2", "/3", "/4", "/5", i % 3 == 0 ? "/6" : "/7", i % 3 == 1 ? "/8" : "/9"}));
  for (const char* name : {"pair1", "pair2"})
    names.push_back(opens(name, {"/a", "/b", "/c", "/d", "/e", "/f"}));
  names.push_back(opens("close", {"/1", "/2", "/3", "/4", "/5", "/6"}));
  names.push_back(opens("far", {"/1", "/2", "/p", "/q", "/r", "/s", "/t"}));
  const auto j = json(names);
  ASSERT_EQ(j["groups"].size(), 6U);
  EXPECT_EQ(j["groups"][0].size(), 27U);
  EXPECT_EQ(j["groups"][3], (nlohmann::json{80, 81}));
  ASSERT_EQ(j["outliers"].size(), 1U);
  EXPECT_TRUE(std::string(j["outliers"][0]).ends_with("/far"));
  EXPECT_EQ(j["runs"][80]["nearest"], 81);
  const std::string text = run(names).out;
  EXPECT_NE(text.find("run0 and 26 alike\n"), std::string::npos) << text;
  EXPECT_NE(text.find("/far, 5 edits from its nearest, "), std::string::npos) << text;
  EXPECT_EQ(text.find("outlier"), text.rfind("outlier"));
  EXPECT_EQ(std::count(text.begin(), text.begin() + static_cast<int>(text.find("outlier")), '\n'),
            7 + 1 + 10)
      << text;
}

TEST_F(Matrix, stays_narrow_at_85_different_runs) {
  std::vector<std::string> names{"--matrix"};
  std::vector<std::string> paths;
  for (int i = 0; i < 85; ++i) {
    paths.push_back("/" + std::to_string(i));
    names.push_back(opens("run" + std::to_string(i), paths));
  }
  const std::string text = run(names).out;
  std::istringstream lines(text);
  std::size_t longest = 0;
  for (std::string line; std::getline(lines, line);)
    if (line.find("events") == line.npos && line.find("compared") == line.npos)
      longest = std::max(
          longest, line.size() - (line.find('/') == line.npos ? 0 : line.size() - line.find('/')));
  EXPECT_LE(longest, 100U) << text;
  EXPECT_NE(text.find("the whole matrix: --json or --html"), std::string::npos);
}

TEST_F(Matrix, builds_its_tree_by_average_linkage) {
  // Sokal and Michener's rule on three words.
  const auto a = opens("a", {"/1", "/2", "/3", "/4", "/5", "/6", "/7", "/8", "/9", "/10"});
  const auto b = opens("b", {"/x", "/y", "/3", "/4", "/5", "/6", "/7", "/8", "/9", "/10"});
  const auto c = opens("c", {"/q", "/r", "/s", "/t", "/u", "/v", "/7", "/8", "/9", "/10"});
  const auto j = json({"--matrix", a, b, c});
  EXPECT_EQ(j["tree"][0]["height"], 2.0);
  EXPECT_EQ(j["tree"][1]["height"], 6.0);
}

TEST_F(Baseline, accepts_usual_distances_and_rejects_larger_ones) {
  std::filesystem::create_directory(path("known"));
  opens("known/1.txt", {"/1", "/2", "/3", "/4"});
  opens("known/2.txt", {"/1", "/x", "/3", "/4"});
  opens("known/3.txt", {"/1", "/y", "/3", "/4"});
  const auto inside = opens("inside", {"/1", "/z", "/3", "/4"});
  const auto outside = opens("outside", {"/1", "/p", "/q", "/4"});
  EXPECT_EQ(run({"--baseline", path("known"), inside}).status, 0);
  EXPECT_EQ(run({"--baseline", path("known"), outside}).status, 1);
  EXPECT_EQ(run({"--baseline", path("known"), outside, "--max-distance", "2"}).status, 0);
  EXPECT_EQ(run({"--baseline", path("known"), outside, "--max-distance", "50%"}).status, 0);
  const auto j = json({"--baseline", path("known"), outside});
  EXPECT_EQ(j["distance"], 2);
  EXPECT_EQ(j["usual"], 1);
  EXPECT_EQ(j["outside"], true);
  EXPECT_EQ(j["never_seen"], nlohmann::json::array({"open /p", "open /q"}));
  EXPECT_EQ(j["always_missing"], nlohmann::json::array({"open /3"}));
}

TEST_F(Baseline, exits_with_2_on_an_unusable_directory) {
  const auto a = opens("a", {"/1"});
  std::filesystem::create_directory(path("none"));
  EXPECT_EQ(run({"--baseline", path("none"), a}).status, 2);
  std::filesystem::create_directory(path("bad"));
  file("bad/x", "hello\n");
  EXPECT_EQ(run({"--baseline", path("bad"), a}).status, 2);
}

TEST(Outliers, are_single_runs_and_never_groups) {
  EXPECT_TRUE(diff::find_outliers({0, 50}).empty());
  EXPECT_EQ(diff::find_outliers({0, 0, 9}), std::vector<std::size_t>{2});
  EXPECT_TRUE(diff::find_outliers({1, 2, 1, 2}).empty());
}

}  // namespace heddle
