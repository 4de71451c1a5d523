// SPDX-License-Identifier: MIT
// fs-resolve and directory trees.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>

#include "resolver/map/map_reader.hpp"
#include "resolver/map/tree_index.hpp"
#include "tests/resolve/resolve_fixture.hpp"
#include "tests/support/slow_mount.hpp"

namespace heddle::test {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

class BuildTree : public ResolveFixture {
 protected:
  void SetUp() override {
    ResolveFixture::SetUp();
    if (fs_resolve_.empty()) return;
    write_text_file(tree_ + "/pkg/__init__.py", "x = 1\n");
    write_text_file(tree_ + "/pkg/sub/mod.py", "y = 2\n");
    fs::create_symlink("pkg/sub", tree_ + "/link");
    options_.cwd = dir_.path() + "/cwd";
    fs::create_directory(options_.cwd);
  }
  MapContent content() const {
    return value_or_throw(value_or_throw(MapReader::open(map_)).read_all());
  }
  std::vector<std::string> drift() const {
    std::vector<std::string> out;
    const auto verified = json_of({"verify", "--json", map_});
    for (const auto& one : verified["drift"])
      out.push_back(one["what"].get<std::string>() + " " +
                    one["path"].get<std::string>().substr(dir_.path().size() + 1));
    std::ranges::sort(out);
    return out;
  }
  std::string tree_ = dir_ / "tree";
};

TEST_F(BuildTree, puts_a_tree_into_a_map_without_and_with_programs) {
  auto built = resolve({"build", "-o", map_, "--tree", tree_});
  EXPECT_EQ(built.status, 0) << built.err;
  EXPECT_THAT(built.out, HasSubstr("0 programs, 0 views, 0 files, 1 tree"));
  built = resolve({"build", "-o", map_, "--tree", tree_, "/bin/ls"});
  EXPECT_THAT(built.out, HasSubstr("1 program, 1 view"));
  const auto content = this->content();
  ASSERT_EQ(content.trees.size(), 1U);
  EXPECT_EQ(content.trees[0].path, tree_);
  const auto index = value_or_throw(TreeIndex::of(content.trees[0].index));
  EXPECT_TRUE(index.find_path("pkg/sub/mod.py"));
  EXPECT_EQ(index.node(*index.find_path("link")).target, "pkg/sub");
  const auto json = shown();
  EXPECT_EQ(json["trees"][0]["path"], tree_);
  EXPECT_EQ(json["trees"][0]["files"], 2);
  EXPECT_EQ(json["trees"][0]["directories"], 3);
  EXPECT_EQ(json["trees"][0]["links"], 1);
  EXPECT_EQ(json["trees"][0]["bytes"], 12);
  EXPECT_THAT(
      resolve({"show", map_}).out,
      HasSubstr("tree " + tree_ + ": 3 directories, 2 files, 1 symbolic links, 12 bytes\n"));
}

TEST_F(BuildTree, leaves_excluded_directories_out) {
  fs::create_directories(tree_ + "/pkg/cache/x");
  ASSERT_EQ(resolve({"build", "-o", map_, "--tree", tree_, "--tree-exclude", tree_ + "/pkg/cache"})
                .status,
            0);
  EXPECT_EQ(shown()["trees"][0]["holes"], Json::array({tree_ + "/pkg/cache"}));
  EXPECT_THAT(resolve({"show", map_}).out, HasSubstr("  hole " + tree_ + "/pkg/cache\n"));
  fs::create_directories(tree_ + "/pkg/cache/y");
  EXPECT_EQ(resolve({"verify", map_}).status, 0);
}

TEST_F(BuildTree, excluded_file_is_no_difference) {
  ASSERT_EQ(
      resolve({"build", "-o", map_, "--tree", tree_, "--tree-exclude", tree_ + "/pkg/__init__.py"})
          .status,
      0);
  const auto verified = resolve({"verify", map_});
  EXPECT_EQ(verified.status, 0) << verified.out;
}

TEST_F(BuildTree, of_an_image_is_listed_again_since_its_directories_keep_their_times) {
  const timespec times[2] = {{1000, 0}, {1000, 0}};
  const auto set_times = [&] {
    for (const char* name : {"", "/pkg", "/pkg/sub"})
      ASSERT_EQ(::utimensat(AT_FDCWD, (tree_ + name).c_str(), times, 0), 0);
  };
  set_times();
  SlowMount slow(tree_, dir_ / "slow", dir_ / "counts", {.delay_us = 0, .image = true});
  ASSERT_EQ(resolve({"build", "-o", map_, "--tree", dir_ / "slow"}).status, 0);
  write_text_file(tree_ + "/pkg/new.py", "z = 3\n");
  set_times();
  EXPECT_THAT(drift(), ::testing::ElementsAre("added slow/pkg/new.py"));
  ASSERT_EQ(resolve({"build", "-o", map_, "--tree", dir_ / "slow"}).status, 0);
  const auto content = this->content();
  EXPECT_TRUE(value_or_throw(TreeIndex::of(content.trees[0].index)).find_path("pkg/new.py"));
}

TEST_F(BuildTree, refuses_with_one_clear_error_and_keeps_the_old_map) {
  ASSERT_EQ(resolve({"build", "-o", map_, "--tree", tree_}).status, 0);
  const auto before = value_or_throw(read_file(map_));
  const auto refused = [&](Words words, const std::string& why) {
    words.insert(words.begin(), {"build", "-o", map_});
    const auto result = resolve(words);
    EXPECT_NE(result.status, 0) << why;
    EXPECT_THAT(result.err, HasSubstr(why));
    EXPECT_LE(lines_of(result.err).size(), 2U) << result.err;
  };
  write_text_file(dir_ / "setid/file", "x");
  ASSERT_EQ(::chmod((dir_ / "setid/file").c_str(), 02755), 0);
  refused({"--tree", "/"}, "/: no tree of a map: it is the root directory");
  refused({"--tree", "/usr"}, "/usr: no tree of a map: it is /usr");
  refused({"--tree", "."}, "it is a directory that the program works in");
  refused({"--tree", dir_ / "setid"}, "setid/file: a file with set-ID bits");
  refused({"--tree", dir_ / "none"}, "none: cannot open: No such file or directory");
  refused({"--tree", tree_ + "/pkg/__init__.py"}, "Not a directory");
  refused({"--tree", ""}, "");
  refused({"--tree", tree_, "--tree-exclude", dir_ / "none"}, "cannot be excluded");
  refused({"--tree-exclude", tree_, "/bin/ls"}, "cannot be excluded: there is no tree");
  refused({"--python", "/bin/ls"}, "/bin/ls: not a Python interpreter");
  refused({"--tree", tree_, "--into", "/x", "--program", "/bin/ls"}, "--into");
  EXPECT_EQ(before, value_or_throw(read_file(map_)));
}

TEST_F(BuildTree, verify_names_every_difference) {
  write_text_file(tree_ + "/pkg/same.py", "1");
  write_text_file(tree_ + "/gone/a.py", "1");
  write_text_file(tree_ + "/pkg/mode.py", "1");
  ASSERT_EQ(resolve({"build", "-o", map_, "--tree", tree_}).status, 0);
  EXPECT_EQ(resolve({"verify", map_}).status, 0);
  EXPECT_THAT(resolve({"verify", map_}).out, HasSubstr("0 of 10 names of trees differ"));
  write_text_file(tree_ + "/pkg/__init__.py", "x = 22\n");
  write_text_file(tree_ + "/pkg/new/deep/x.py", "1");
  fs::remove_all(tree_ + "/gone");
  ASSERT_EQ(::chmod((tree_ + "/pkg/mode.py").c_str(), 0600), 0);
  fs::remove(tree_ + "/link");
  fs::create_symlink("pkg", tree_ + "/link");
  EXPECT_THAT(drift(), ::testing::ElementsAre("added tree/pkg/new", "changed tree/link",
                                              "changed tree/pkg/__init__.py",
                                              "changed tree/pkg/mode.py", "missing tree/gone"));
  EXPECT_EQ(resolve({"verify", map_}).status, 1);
  fs::remove_all(tree_);
  EXPECT_THAT(drift(), ::testing::ElementsAre("missing tree"));
}

TEST_F(BuildTree, finds_the_trees_of_a_python) {
  write_text_file(dir_ / "py/bin/python3.11",
                  "\x7f"
                  "ELF");
  ASSERT_EQ(::chmod((dir_ / "py/bin/python3.11").c_str(), 0755), 0);
  write_text_file(dir_ / "py/lib/python3.11/os.py", "x");
  for (const char* name : {"a", "b"}) write_text_file(dir_ / "pkgs/" + name + "/x.py", "x");
  options_.env.push_back("PYTHONPATH=" + dir_ / "pkgs/a:" + dir_ / "pkgs/b:" + options_.cwd);
  const auto built = resolve({"build", "-o", map_, "--python", dir_ / "py/bin/python3.11"});
  EXPECT_EQ(built.status, 0) << built.err;
  EXPECT_THAT(built.err, HasSubstr("note: " + options_.cwd + ": no tree: it is a directory that"));
  std::vector<std::string> paths;
  for (const auto& tree : content().trees) paths.push_back(tree.path);
  EXPECT_THAT(paths, ::testing::ElementsAre(dir_ / "pkgs", dir_ / "py/lib/python3.11"));
}

TEST_F(BuildTree, of_a_slow_file_system_is_read_and_verified_with_32_requests_in_flight) {
  for (int i = 0; i < 100; ++i)
    write_text_file(tree_ + "/p" + std::to_string(i) + "/__init__.py", "x");
  SlowMount slow(tree_, dir_ / "slow", dir_ / "counts", {.delay_us = 20'000});
  ASSERT_EQ(resolve({"build", "-o", map_, "--tree", dir_ / "slow"}).status, 0);
  EXPECT_GE(slow.reset().most_in_flight, 32U);
  EXPECT_EQ(resolve({"verify", map_}).status, 0);
  EXPECT_GE(slow.reset().most_in_flight, 32U);
}

}  // namespace
}  // namespace heddle::test
