// SPDX-License-Identifier: MIT
#include "fuseovl/overlay/tree.hpp"

#include <gtest/gtest.h>

#include <algorithm>

namespace heddle {
namespace {

MapContent map_of(std::vector<MapView> views, std::size_t objects) {
  MapContent content;
  content.objects.resize(objects);
  for (std::size_t i = 0; i < objects; ++i) content.objects[i].path = "/o/" + std::to_string(i);
  for (auto& view : views) std::sort(view.names.begin(), view.names.end());
  content.views = std::move(views);
  return content;
}

Tree tree_of(std::vector<MapView> views, std::size_t objects) {
  return value_or_throw(Tree::build(map_of(std::move(views), objects)));
}

std::vector<std::string> names_of(const Tree& tree, InodeNumber directory) {
  std::vector<std::string> out;
  for (std::size_t i = 0; const auto entry = tree.entry(directory, i); ++i)
    out.emplace_back(entry->name);
  return out;
}

using List = std::vector<std::string>;

TEST(Tree, generated_files_are_in_dot_heddle_or_at_the_root) {
  auto content = map_of({{"app", {{"liba.so", 0}}}}, 1);
  content.generated = {{".heddle/container.json", "{}"},
                       {".heddle/ld.so.cache", "bytes"},
                       {"libchanged.so.1", "more"}};
  const auto tree = value_or_throw(Tree::build(content));
  EXPECT_EQ(names_of(tree, Tree::kOwnDirectory),
            (List{"container.json", "index", "ld.so.cache", "map"}));
  const auto ino = tree.lookup(Tree::kOwnDirectory, "ld.so.cache");
  EXPECT_EQ(tree.kind(ino), NodeKind::own);
  EXPECT_EQ(tree.own(ino), 3U);
  EXPECT_EQ(names_of(tree, Tree::kRoot),
            (List{".heddle", ".ldc", "app", "liba.so", "libchanged.so.1"}));
  // .ldc: a path no longer than /etc/ld.so.cache.
  EXPECT_EQ(tree.lookup(Tree::kRoot, ".ldc"), ino);
}

TEST(Tree, a_file_with_the_name_of_the_only_view_wins_over_its_directory) {
  const auto tree = tree_of({{"app", {{"app", 0}, {"lib.so", 1}}}}, 2);
  EXPECT_EQ(tree.kind(tree.lookup(Tree::kRoot, "app")), NodeKind::object);
  EXPECT_NE(tree.lookup(Tree::kRoot, "lib.so"), 0U);
}

TEST(Tree, names_that_no_directory_can_hold_are_refused) {
  for (const char* name : {"a b\tc\nd.so", "lib\xC3\xA9.so", "\xFF\xFE", "..."})
    EXPECT_NE(tree_of({{"v", {{name, 0}}}}, 1).lookup(Tree::kRoot, name), 0U);
  const std::string nul("a\0b", 3);
  for (const auto& name :
       {std::string(), std::string("."), std::string(".."), nul, std::string(256, 'x'),
        std::string("a/../b"), std::string("/a"), std::string("a/"), std::string("a//b")}) {
    const auto tree = Tree::build(map_of({{"v", {{name, 0}}}}, 1));
    EXPECT_FALSE(tree) << name;
  }
  EXPECT_FALSE(Tree::build(map_of({{"v", {{"x", 0}, {"x/y", 0}}}}, 1)));
  EXPECT_FALSE(Tree::build(map_of({{"v", {{".heddle", 0}}}}, 1)));
  EXPECT_FALSE(Tree::build(map_of({{".heddle", {{"x", 0}}}}, 1)));
  EXPECT_FALSE(Tree::build(map_of({{"a/b", {{"x", 0}}}}, 1)));
  EXPECT_FALSE(Tree::build(map_of({{"v", {{"x", 7}}}}, 1)));
  // Beside and in the directories of previous maps.
  EXPECT_FALSE(Tree::build(map_of({{".m", {{"x", 0}}}}, 1), {"a", {{"b", {}}}}));
  EXPECT_FALSE(Tree::build(map_of({{"v", {{"x", 0}}}}, 1), {"a", {{"b", {{"../x", "/y"}}}}}));
}

}  // namespace
}  // namespace heddle
