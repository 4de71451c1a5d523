// SPDX-License-Identifier: MIT
#include "resolver/map/tree_index.hpp"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <random>

#include "tests/map/sample_map.hpp"

namespace heddle {
namespace {

using Entry = TreeIndexWriter::Entry;

TreeIndex index_of(const std::string& bytes) { return value_or_throw(TreeIndex::of(bytes)); }
Entry file(std::string name, mode_t mode = S_IFREG | 0644) {
  Entry entry;
  entry.name = std::move(name);
  entry.mode = static_cast<std::uint16_t>(mode);
  return entry;
}
Entry directory(std::string name, std::vector<Entry> children = {}) {
  Entry entry = file(std::move(name), S_IFDIR | 0755);
  entry.children = std::move(children);
  return entry;
}
int refusal(Entry root) {
  auto bytes = TreeIndexWriter::encode(std::move(root));
  return bytes ? 0 : bytes.error().code();
}

/// `count` packages of 100 modules, with names as long as Python's.
Entry packages(unsigned count) {
  Entry root = directory("");
  for (unsigned i = 0; i < count; ++i) {
    Entry package = directory("package_number_" + std::to_string(i));
    for (unsigned j = 0; j < 100; ++j) {
      Entry module = file("a_module_of_it_" + std::to_string(j) + ".cpython-311.pyc");
      module.size = i * 1000 + j;
      module.mtime_ns = 1700000000000000000 + j;
      package.children.push_back(std::move(module));
    }
    root.children.push_back(std::move(package));
  }
  return root;
}

TEST(TreeIndex, keeps_every_attribute_of_every_kind_of_entry) {
  const auto bytes = sample_tree();
  const auto tree = index_of(bytes);
  ASSERT_EQ(tree.size(), 7U);
  const auto root = tree.node(kTreeRoot);
  EXPECT_TRUE(root.name.empty() && root.child_count == 3 && root.mode == (S_IFDIR | 0755));
  const auto id = tree.find_path("lower/a.b");
  const auto other = tree.find_path("b\n\xff");
  ASSERT_TRUE(id && other);
  const auto node = tree.node(*id);
  EXPECT_EQ(node.name, "a.b");
  EXPECT_EQ(tree.path(*id), "lower/a.b");
  EXPECT_TRUE(node.mode == (S_IFREG | 0644) && node.links == 2 && node.size == 7);
  EXPECT_EQ(node.mtime_ns, 5);
  // Names of one file: the first in the tree's order stands for both.
  EXPECT_EQ(node.same_as, *other);
  EXPECT_EQ(tree.node(*other).same_as, *other);
  const auto link = tree.find_path("lower/so");
  ASSERT_TRUE(link);
  EXPECT_EQ(tree.node(*link).target, "a.b");
  const auto hole = tree.find_path("lower/hole");
  ASSERT_TRUE(hole);
  EXPECT_TRUE(tree.node(*hole).hole && !tree.node(*other).hole);
}

TEST(TreeIndex, finds_no_other_name) {
  const auto bytes = sample_tree();
  const auto tree = index_of(bytes);
  for (const char* path : {"x", "lower/", "lower/x", "/lower", "none/x", "lower/a.b/x",
                           "lower/so/x", "lower//a.b", "lower/../lower", ".", "lower/hole/x"})
    EXPECT_FALSE(tree.find_path(path)) << path;
  EXPECT_EQ(tree.find_path(""), kTreeRoot);
}

TEST(TreeIndex, is_the_same_whatever_the_order_of_its_entries) {
  Entry turned = packages(20);
  std::mt19937 random(1);
  for (Entry& package : turned.children)
    std::shuffle(package.children.begin(), package.children.end(), random);
  std::shuffle(turned.children.begin(), turned.children.end(), random);
  EXPECT_TRUE(value_or_throw(TreeIndexWriter::encode(packages(20))) ==
              value_or_throw(TreeIndexWriter::encode(turned)));
}

TEST(TreeIndex, writer_refuses_names_and_modes_that_are_not_allowed) {
  EXPECT_EQ(refusal(directory("")), 0);
  for (const auto& name : {std::string(), std::string("."), std::string(".."), std::string("a/b"),
                           std::string("a\0b", 3), std::string(256, 'x')})
    EXPECT_EQ(refusal(directory("", {file(name)})), EINVAL) << name;
  EXPECT_EQ(refusal(directory("", {file(std::string(255, '\n'))})), 0);
  EXPECT_EQ(refusal(directory("", {file("a"), file("a")})), EINVAL);
  EXPECT_EQ(refusal(directory("name")), EINVAL);
  EXPECT_EQ(refusal(file("")), EINVAL);
  for (const int mode : {S_IFREG | S_ISUID | 0755, S_IFREG | S_ISGID | 0755, S_IFSOCK | 0644,
                         S_IFIFO | 0644, S_IFCHR | 0644, S_IFBLK | 0644, 0644})
    EXPECT_EQ(refusal(directory("", {file("x", static_cast<mode_t>(mode))})), EINVAL) << mode;
  EXPECT_EQ(refusal(directory("", {file("tmp", S_IFDIR | S_ISVTX | S_ISGID | 0777)})), 0);
  Entry link = file("x", S_IFLNK | 0777);
  EXPECT_EQ(refusal(directory("", {link})), EINVAL);  // it leads nowhere
  link.target = "y";
  EXPECT_EQ(refusal(directory("", {link})), EINVAL);  // of another size
  link.size = 1;
  EXPECT_EQ(refusal(directory("", {link})), 0);
  Entry hole = directory("hole", {file("x")});
  hole.hole = true;
  EXPECT_EQ(refusal(directory("", {hole})), EINVAL);
  Entry parent = file("x");
  parent.children = {file("y")};
  EXPECT_EQ(refusal(directory("", {parent})), EINVAL);
  Entry deep = directory("x");
  for (int i = 0; i < 20; ++i) deep = directory(std::string(255, 'd'), {deep});
  EXPECT_EQ(refusal(directory("", {deep})), EINVAL);  // a path of more than PATH_MAX
}

}  // namespace
}  // namespace heddle
