// SPDX-License-Identifier: MIT
#include <gtest/gtest.h>

#include "record/loopback/inode_numbers.hpp"
#include "record/loopback/node_table.hpp"
#include "record/native_folders.hpp"
#include "record/walks.hpp"

namespace heddle {
namespace {

using loopback::FileKey;
using loopback::InodeNumbers;
using loopback::NodeTable;

FileKey folder(std::uint64_t inode) { return {1, inode, S_IFDIR, 1, 0}; }
FileKey file(std::uint64_t inode) { return {1, inode, S_IFREG, 1, 0}; }

TEST(InodeNumbers, are_unique_over_devices_and_stay) {
  InodeNumbers numbers(7);
  EXPECT_EQ(numbers.of(7, 12), 12U);
  const auto other = numbers.of(8, 12);
  EXPECT_NE(other, 12U);
  EXPECT_EQ(numbers.of(8, 12), other);
  const auto huge = numbers.of(8, ~0ULL);
  EXPECT_EQ(numbers.of(8, ~0ULL), huge);
  EXPECT_NE(huge, numbers.of(9, ~0ULL));
}

TEST(NodeTable, a_renamed_folder_takes_what_is_below_with_it) {
  NodeTable nodes(folder(2));
  const auto a = nodes.bind(1, "a", folder(3));
  const auto f = nodes.bind(a, "f", file(4));
  nodes.rename(1, "a", 1, "b", false);
  EXPECT_EQ(nodes.path(f), "/b/f");
  EXPECT_EQ(nodes.path(a, "new"), "/b/new");
}

TEST(NodeTable, names_of_one_file_are_one_node) {
  NodeTable nodes(folder(2));
  const auto one = nodes.bind(1, "one", file(4));
  EXPECT_EQ(nodes.bind(1, "two", file(4)), one);
  EXPECT_EQ(nodes.path(one), "/two");
  nodes.unbind(1, "two");
  EXPECT_EQ(nodes.path(one), "/one");
  nodes.unbind(1, "one");
  EXPECT_FALSE(nodes.path(one));
}

TEST(NodeTable, exchange_swaps_two_files) {
  NodeTable nodes(folder(2));
  const auto one = nodes.bind(1, "one", file(4));
  const auto two = nodes.bind(1, "two", file(5));
  nodes.rename(1, "one", 1, "two", true);
  EXPECT_EQ(nodes.path(one), "/two");
  EXPECT_EQ(nodes.path(two), "/one");
}

TEST(NodeTable, what_the_kernel_forgets_is_forgotten) {
  NodeTable nodes(folder(2));
  const auto a = nodes.bind(1, "a", folder(3));
  const auto f = nodes.bind(a, "f", file(4));
  nodes.bind(a, "f", file(4));
  nodes.forget(a, 1);  // the child still needs its path
  EXPECT_EQ(nodes.path(f), "/a/f");
  nodes.forget(f, 1);
  EXPECT_EQ(nodes.size(), 3U);
  nodes.forget(f, 1);
  EXPECT_EQ(nodes.size(), 1U);
}

TEST(NodeTable, a_file_replaced_outside_is_another_node) {
  NodeTable nodes(folder(2));
  const auto old = nodes.bind(1, "f", file(4));
  auto again = file(4);
  again.born_ns = 9;  // its inode number was given out again
  EXPECT_NE(nodes.bind(1, "f", again), old);
  EXPECT_FALSE(nodes.path(old));
}

TEST(Walks, destinations_are_absolute_and_plain) {
  EXPECT_EQ(Walks::destination("/lib", "usr/lib"), "/usr/lib");
  EXPECT_EQ(Walks::destination("/a/b/c", "../x/./y"), "/a/x/y");
  EXPECT_EQ(Walks::destination("/a/b", "/c//d/"), "/c/d");
  EXPECT_EQ(Walks::destination("/a", "../.."), "/");
}

TEST(NativeFolders, only_sockets_that_answer_count) {
  const std::string text =
      "Num       RefCount Protocol Flags    Type St Inode Path\n"
      "0000: 00000002 00000000 00010000 0001 01 100 /run/dbus/socket\n"
      "0000: 00000003 00000000 00000000 0001 03 101 /run/dbus/client\n"
      "0000: 00000002 00000000 00000000 0002 01 102 /dev/log with space\n"
      "0000: 00000002 00000000 00010000 0001 01 103 @/abstract/name\n"
      "0000: 00000002 00000000 00010000 0001 01 104\n";
  EXPECT_EQ(served_sockets(text),
            (std::vector<std::string>{"/run/dbus/socket", "/dev/log with space"}));
}

}  // namespace
}  // namespace heddle
