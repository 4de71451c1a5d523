// SPDX-License-Identifier: MIT
// What one worker of the recorder leaves to the next.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <cstdio>
#include <fstream>
#include <system_error>

#include "record/loopback/inode_numbers.hpp"
#include "record/loopback/node_table.hpp"

namespace heddle {
namespace {

using loopback::BlockKind;
using loopback::BlockStore;
using loopback::FileKey;
using loopback::InodeNumbers;
using loopback::NodeTable;
using loopback::SharedPages;
using loopback::WorkerMemory;

FileKey folder(std::uint64_t inode) { return {1, inode, S_IFDIR, 1, 0}; }
FileKey file(std::uint64_t inode) { return {1, inode, S_IFREG, 1, 0}; }

TEST(InodeNumbers, are_unique_over_devices_and_stay) {
  WorkerMemory memory;
  InodeNumbers numbers(memory, 7);
  EXPECT_EQ(numbers.of(7, 12), 12U);
  const auto other = numbers.of(8, 12);
  EXPECT_NE(other, 12U);
  EXPECT_EQ(numbers.of(8, 12), other);
  const auto huge = numbers.of(8, ~0ULL);
  EXPECT_EQ(numbers.of(8, ~0ULL), huge);
  EXPECT_NE(huge, numbers.of(9, ~0ULL));
}

TEST(NodeTable, a_renamed_folder_takes_what_is_below_with_it) {
  WorkerMemory memory;
  NodeTable nodes(memory, folder(2));
  const auto a = nodes.bind(1, "a", folder(3));
  const auto f = nodes.bind(a, "f", file(4));
  nodes.rename(1, "a", 1, "b", false);
  EXPECT_EQ(nodes.path(f), "/b/f");
  EXPECT_EQ(nodes.path(a, "new"), "/b/new");
}

TEST(NodeTable, names_of_one_file_are_one_node) {
  WorkerMemory memory;
  NodeTable nodes(memory, folder(2));
  const auto one = nodes.bind(1, "one", file(4));
  EXPECT_EQ(nodes.bind(1, "two", file(4)), one);
  EXPECT_EQ(nodes.path(one), "/two");
  nodes.unbind(1, "two");
  EXPECT_EQ(nodes.path(one), "/one");
  nodes.unbind(1, "one");
  EXPECT_FALSE(nodes.path(one));
}

TEST(NodeTable, exchange_swaps_two_files) {
  WorkerMemory memory;
  NodeTable nodes(memory, folder(2));
  const auto one = nodes.bind(1, "one", file(4));
  const auto two = nodes.bind(1, "two", file(5));
  nodes.rename(1, "one", 1, "two", true);
  EXPECT_EQ(nodes.path(one), "/two");
  EXPECT_EQ(nodes.path(two), "/one");
}

TEST(NodeTable, what_the_kernel_forgets_is_forgotten) {
  WorkerMemory memory;
  NodeTable nodes(memory, folder(2));
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
  WorkerMemory memory;
  NodeTable nodes(memory, folder(2));
  const auto old = nodes.bind(1, "f", file(4));
  auto again = file(4);
  again.born_ns = 9;  // its inode number was given out again
  EXPECT_NE(nodes.bind(1, "f", again), old);
  EXPECT_FALSE(nodes.path(old));
}

/// The line of /proc/self/maps about it.
std::string mapping_of(const void* memory) {
  const auto at = reinterpret_cast<std::uintptr_t>(memory);
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    unsigned long begin = 0, end = 0;
    if (std::sscanf(line.c_str(), "%lx-%lx", &begin, &end) == 2 && at >= begin && at < end)
      return line;
  }
  return {};
}

TEST(SharedPages, are_a_file_in_memory_that_counts_as_it_is_used) {
  const SharedPages pages(std::size_t{1} << 34);
  EXPECT_NE(mapping_of(pages.data()).find("/memfd:heddle-pages"), std::string::npos)
      << "with vm.overcommit_memory=2 all of it would count at once";
  pages.data()[pages.size() - 1] = 'x';
  EXPECT_EQ(pages.data()[0], 0);
}

TEST(SharedPages, are_had_whatever_files_may_be_large) {
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  const rlimit small{4096, before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &small), 0);
  const SharedPages pages(std::size_t{1} << 20);
  ::setrlimit(RLIMIT_FSIZE, &before);
  pages.data()[pages.size() - 1] = 'x';
}

TEST(SharedPages, are_fewer_where_there_is_no_more_room) {
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_AS, &before), 0);
  const rlimit little{std::size_t{2} << 30, before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_AS, &little), 0);
  {
    const SharedPages pages(std::size_t{16} << 30, std::size_t{64} << 20);
    EXPECT_LT(pages.size(), std::size_t{2} << 30);
    EXPECT_THROW(SharedPages(std::size_t{16} << 30), std::system_error);
  }
  ::setrlimit(RLIMIT_AS, &before);
}

TEST(BlockStore, what_was_committed_is_there_for_the_next_and_the_rest_is_free) {
  BlockStore store;
  auto* kept = static_cast<int*>(store.make(400));
  *kept = 7;
  BlockStore::commit(kept, BlockKind::handle);
  void* half_made = store.make(400);
  void* given_up = store.make(40);
  BlockStore::commit(given_up, BlockKind::name);
  store.give_up(given_up);
  store.recover();
  std::vector<int> found;
  store.each(BlockKind::handle, [&](void* block) { found.push_back(*static_cast<int*>(block)); });
  EXPECT_EQ(found, std::vector<int>{7});
  EXPECT_EQ(store.make(400), half_made);
  EXPECT_EQ(store.make(33), given_up);
}

/// What a worker finds whose predecessor has died in the midst of something, or not.
class NextWorker : public ::testing::TestWithParam<bool> {
 protected:
  void die() {
    if (GetParam()) memory_.tables.distrust();
    memory_.recover();
  }
  WorkerMemory memory_;
};
INSTANTIATE_TEST_SUITE_P(, NextWorker, ::testing::Bool(), [](const auto& which) {
  return which.param ? "of_one_in_the_midst_of_a_change" : "of_one_at_rest";
});

TEST_P(NextWorker, knows_the_files_that_the_one_before_knew) {
  std::uint64_t a = 0, f = 0, gone = 0;
  {
    NodeTable nodes(memory_, folder(2));
    a = nodes.bind(1, "a", folder(3));
    f = nodes.bind(a, "f", file(4));
    nodes.bind(a, "f", file(4));
    nodes.bind(a, "g", file(4));
    nodes.bind(1, "x", file(5));
    nodes.rename(1, "x", a, "y", false);
    gone = nodes.bind(1, "gone", file(6));
    nodes.forget(gone, 1);
  }
  die();
  NodeTable nodes(memory_, folder(2));
  EXPECT_EQ(nodes.path(f), "/a/g");
  nodes.unbind(a, "g");
  EXPECT_EQ(nodes.path(f), "/a/f");
  EXPECT_EQ(nodes.path(nodes.child(a, "y")), "/a/y");
  EXPECT_FALSE(nodes.path(gone));
  EXPECT_EQ(nodes.key(f), file(4));
  nodes.forget(f, 2);
  EXPECT_TRUE(nodes.path(f));
  nodes.forget(f, 1);
  EXPECT_FALSE(nodes.path(f));
  EXPECT_GT(nodes.bind(1, "new", file(7)), gone) << "no number is given out twice";
}

TEST_P(NextWorker, knows_the_descriptors_of_files_without_a_name) {
  std::uint64_t f = 0;
  const int fd = ::open("/dev/null", O_PATH | O_CLOEXEC);
  {
    NodeTable nodes(memory_, folder(2));
    f = nodes.bind(1, "f", file(4));
    nodes.pin(f, Fd(fd));
    nodes.unbind(1, "f");
  }
  EXPECT_EQ(NodeTable::pins(memory_), std::vector<int>{fd});
  die();
  NodeTable nodes(memory_, folder(2));
  EXPECT_EQ(nodes.any_fd(f), fd);
  nodes.forget(f, 1);
  EXPECT_EQ(::fcntl(fd, F_GETFD), -1) << "closed with its node";
  EXPECT_TRUE(NodeTable::pins(memory_).empty());
}

TEST_P(NextWorker, gives_out_the_same_inode_numbers) {
  std::uint64_t other = 0, huge = 0;
  {
    InodeNumbers numbers(memory_, 7);
    other = numbers.of(8, 12);
    huge = numbers.of(8, ~0ULL);
  }
  die();
  InodeNumbers numbers(memory_, 7);
  EXPECT_EQ(numbers.of(8, ~0ULL), huge);
  EXPECT_EQ(numbers.of(8, 12), other);
  EXPECT_EQ(numbers.of(7, 12), 12U);
}

TEST_P(NextWorker, uses_again_what_was_given_up) {
  NodeTable nodes(memory_, folder(2));
  const auto fill = [&](NodeTable& table) {
    for (std::uint64_t i = 10; i < 2000; ++i) table.bind(1, std::to_string(i), file(i));
  };
  fill(nodes);
  for (std::uint64_t id = 2; id < 2000; ++id) nodes.forget(id, 1);
  ASSERT_EQ(nodes.size(), 1U);
  const auto used = memory_.nodes.used();
  die();
  NodeTable next(memory_, folder(2));
  fill(next);
  EXPECT_EQ(memory_.nodes.used(), used);
}

}  // namespace
}  // namespace heddle
