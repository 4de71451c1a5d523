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

TEST(Tree, root_of_an_empty_map_holds_only_heddles_own_directory) {
  const auto tree = tree_of({}, 0);
  EXPECT_EQ(names_of(tree, Tree::kRoot), List{".heddle"});
  EXPECT_EQ(names_of(tree, Tree::kOwnDirectory), (List{"index", "map"}));
  EXPECT_EQ(tree.link_count(Tree::kRoot), 3U);
}

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

TEST(Tree, names_of_the_only_view_are_at_the_root_too) {
  const auto tree = tree_of({{"app", {{"liba.so", 0}, {"libb.so", 1}}}}, 2);
  EXPECT_EQ(names_of(tree, Tree::kRoot), (List{".heddle", "app", "liba.so", "libb.so"}));
  const auto view = tree.lookup(Tree::kRoot, "app");
  EXPECT_EQ(names_of(tree, view), (List{"liba.so", "libb.so"}));
  EXPECT_EQ(tree.lookup(view, "liba.so"), tree.lookup(Tree::kRoot, "liba.so"));
  EXPECT_EQ(tree.link_count(tree.inode(0)), 2U);
}

TEST(Tree, views_may_disagree_and_aliases_are_one_inode) {
  const auto tree = tree_of(
      {{"a", {{"libx.so", 0}, {"libx.so.1", 0}}}, {"b", {{"liby.so", 0}, {"libx.so", 1}}}}, 2);
  EXPECT_EQ(names_of(tree, Tree::kRoot), (List{".heddle", "a", "b"}));
  const auto a = tree.lookup(Tree::kRoot, "a");
  EXPECT_EQ(tree.object(tree.lookup(a, "libx.so")), 0U);
  EXPECT_EQ(tree.object(tree.lookup(tree.lookup(Tree::kRoot, "b"), "libx.so")), 1U);
  EXPECT_EQ(tree.lookup(a, "libx.so"), tree.lookup(a, "libx.so.1"));
  EXPECT_EQ(tree.link_count(tree.lookup(a, "libx.so")), 3U);
}

TEST(Tree, plugin_directories_are_directories_at_any_depth) {
  const auto tree =
      tree_of({{"v", {{"ucx/deep/liby.so", 1}, {"ucx/libx.so", 0}, {"z.so", 0}}}, {"w", {}}}, 2);
  const auto v = tree.lookup(Tree::kRoot, "v");
  const auto ucx = tree.lookup(v, "ucx");
  EXPECT_EQ(tree.kind(ucx), NodeKind::directory);
  EXPECT_EQ(names_of(tree, ucx), (List{"deep", "libx.so"}));
  EXPECT_EQ(tree.parent(tree.lookup(ucx, "deep")), ucx);
  EXPECT_EQ(tree.parent(ucx), v);
  EXPECT_EQ(tree.link_count(ucx), 3U);
  EXPECT_EQ(tree.link_count(v), 3U);
}

TEST(Tree, inode_numbers_depend_on_the_map_alone_and_are_unique) {
  const std::vector<MapView> views = {{"v", {{"p/a.so", 0}, {"b.so", 1}}}, {"w", {{"c.so", 2}}}};
  const auto one = tree_of(views, 3);
  const auto two = tree_of(views, 3);
  std::vector<InodeNumber> seen;
  for (const auto directory : {Tree::kRoot, Tree::kOwnDirectory, one.lookup(Tree::kRoot, "v"),
                               one.lookup(Tree::kRoot, "w")})
    for (std::size_t i = 0; const auto entry = one.entry(directory, i); ++i) {
      EXPECT_EQ(two.lookup(directory, entry->name), entry->ino);
      seen.push_back(entry->ino);
    }
  std::sort(seen.begin(), seen.end());
  EXPECT_EQ(std::adjacent_find(seen.begin(), seen.end()), seen.end());
}

TEST(Tree, a_file_with_the_name_of_the_only_view_wins_over_its_directory) {
  const auto tree = tree_of({{"app", {{"app", 0}, {"lib.so", 1}}}}, 2);
  EXPECT_EQ(tree.kind(tree.lookup(Tree::kRoot, "app")), NodeKind::object);
  EXPECT_NE(tree.lookup(Tree::kRoot, "lib.so"), 0U);
}

TEST(Tree, previous_maps_link_to_original_files_and_the_current_map_to_the_root) {
  const MapDirectories maps{
      "0123456789ab",
      {{"ba9876543210", {{"old.so", "/o/old.so"}, {"p/q.so", "/o/p/q.so"}}}, {"cccccccccccc", {}}}};
  const auto tree = value_or_throw(Tree::build(map_of({{"v", {{"a.so", 0}}}}, 1), maps));
  const auto directory = tree.lookup(Tree::kRoot, ".m");
  EXPECT_EQ(names_of(tree, directory), (List{"0123456789ab", "ba9876543210"}));
  const auto own = tree.lookup(directory, "0123456789ab");
  EXPECT_EQ(own, Tree::kMapNames);
  EXPECT_EQ(tree.lookup(own, "a.so"), tree.lookup(Tree::kRoot, "a.so"));
  const auto before = tree.lookup(directory, "ba9876543210");
  EXPECT_EQ(tree.target(tree.lookup(before, "old.so")), "/o/old.so");
  EXPECT_EQ(tree.target(tree.lookup(tree.lookup(before, "p"), "q.so")), "/o/p/q.so");
  EXPECT_EQ(tree.link_count(own), 2U);
  EXPECT_FALSE(Tree::build(map_of({{".m", {{"x", 0}}}}, 1), maps));
  EXPECT_FALSE(Tree::build(map_of({{"v", {{"x", 0}}}}, 1), {"a", {{"b", {{"../x", "/y"}}}}}));
}

TEST(Tree, lookup_of_a_missing_name_is_none) {
  const auto tree = tree_of({{"v", {{"a.so", 0}}}}, 1);
  EXPECT_EQ(tree.lookup(Tree::kRoot, "b.so"), 0U);
  EXPECT_EQ(tree.lookup(tree.inode(0), "a.so"), 0U);
  EXPECT_EQ(tree.lookup(12345, "a.so"), 0U);
  EXPECT_EQ(tree.kind(0), std::nullopt);
  EXPECT_EQ(tree.kind(9), std::nullopt);
  EXPECT_EQ(tree.kind(99999), std::nullopt);
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
}

}  // namespace
}  // namespace heddle
