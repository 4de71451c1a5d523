// SPDX-License-Identifier: MIT
//
// What measurements with slow-fs rely on: it caches nothing, counts each request, and serves any
// number at once.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <thread>

#include "tests/support/build_elf.hpp"
#include "tests/support/run.hpp"
#include "tests/support/slow_mount.hpp"
#include "tests/support/test_dir.hpp"

namespace heddle::test {
namespace {

bool exists(const std::string& path) {
  struct stat st {};
  return ::stat(path.c_str(), &st) == 0;
}

class SlowFs : public ::testing::Test {
 protected:
  SlowFs() {
    write_text_file(dir / "source/a/b/file", std::string(3U << 20, 'x'));
    std::filesystem::create_symlink("b/file", dir / "source/a/link");
  }
  SlowMount mount(const SlowOptions& options = {}) {
    return {dir / "source", dir / "slow", dir / "counts", options};
  }
  TestDir dir;
};

TEST_F(SlowFs, asks_for_each_name_of_a_path_each_time) {
  auto slow = mount();
  for (int i = 0; i < 5; ++i) {
    EXPECT_TRUE(exists(slow / "a/b/file"));
    EXPECT_FALSE(exists(slow / "a/none"));
  }
  const auto counts = slow.counts();
  EXPECT_EQ(counts.directories.at("a").at("LOOKUP"), 10U);
  EXPECT_EQ(counts.directories.at("a/b").at("LOOKUP"), 5U);
  EXPECT_EQ(counts.files.at("a/b/file"), (SlowCounts::Requests{{"GETATTR", 5}, {"LOOKUP", 5}}));
  EXPECT_EQ(counts.missing.at("a/none"), (SlowCounts::Requests{{"LOOKUP", 5}}));
  EXPECT_EQ(counts.total, 30U);
}

TEST_F(SlowFs, starts_again_at_zero) {
  auto slow = mount();
  EXPECT_EQ(slow.counts().total, 0U);
  EXPECT_FALSE(exists(slow / "none"));
  EXPECT_EQ(slow.reset().total, 1U);
  EXPECT_EQ(slow.counts().total, 0U);
}

TEST_F(SlowFs, reads_a_file_again_at_each_open) {
  auto slow = mount();
  for (int i = 1; i <= 2; ++i) {
    EXPECT_EQ(value_or_throw(read_file(slow / "a/link")), std::string(3U << 20, 'x'));
    const auto counts = slow.reset();
    EXPECT_GE(counts.files.at("a/b/file").at("READ"), 3U);
    EXPECT_EQ(counts.files.at("a/b/file").at("OPEN"), 1U);
    EXPECT_EQ(counts.files.at("a/link").at("READLINK"), 1U);
  }
}

TEST_F(SlowFs, delays_each_request_and_serves_many_at_once) {
  auto slow = mount({.delay_us = 50'000});
  const auto begin = std::chrono::steady_clock::now();
  {
    std::vector<std::jthread> threads;
    for (int i = 0; i < 32; ++i)
      threads.emplace_back([&, i] { EXPECT_FALSE(exists(slow / ("none" + std::to_string(i)))); });
  }
  const auto took = std::chrono::steady_clock::now() - begin;
  EXPECT_GE(took, std::chrono::milliseconds(50));
  EXPECT_LT(took, std::chrono::milliseconds(32 * 50));
  EXPECT_GE(slow.counts().most_in_flight, 16U);
}

TEST_F(SlowFs, as_copper_serves_one_request_at_a_time_and_keeps_no_page) {
  auto slow = mount({.delay_us = 1000, .copper = true});
  {
    std::vector<std::jthread> threads;
    for (int i = 0; i < 8; ++i) threads.emplace_back([&] { EXPECT_FALSE(exists(slow / "none")); });
  }
  const Fd file(::open((slow / "a/b/file").c_str(), O_RDONLY | O_CLOEXEC));
  char byte = 0;
  for (int i = 0; i < 3; ++i) EXPECT_EQ(::pread(file.get(), &byte, 1, 0), 1);
  const auto counts = slow.counts();
  EXPECT_EQ(counts.most_in_flight, 1U);
  EXPECT_EQ(counts.files.at("a/b/file").at("READ"), 3U);
}

TEST_F(SlowFs, serves_a_directory_over_itself_and_is_read_only) {
  {
    SlowMount slow(dir / "source", dir / "source", dir / "counts");
    EXPECT_TRUE(exists(dir / "source/a/b/file"));
    EXPECT_LT(::open((dir / "source/new").c_str(), O_CREAT | O_WRONLY | O_CLOEXEC, 0600), 0);
    EXPECT_EQ(errno, EROFS);
    EXPECT_EQ(slow.counts().directories.at("a").at("LOOKUP"), 1U);
  }
  EXPECT_EQ(mounts_with(dir.path()), 0U);
}

TEST_F(SlowFs, ends_while_it_is_in_use) {
  auto slow = mount();
  const Fd file(::open((slow / "a/b/file").c_str(), O_RDONLY | O_CLOEXEC));
  slow.stop();
  EXPECT_EQ(mounts_with(dir.path()), 0U);
  char byte = 0;
  EXPECT_LT(::pread(file.get(), &byte, 1, 2U << 20), 0);
  EXPECT_EQ(errno, ENOTCONN);
}

TEST_F(SlowFs, reports_a_source_that_it_cannot_open) {
  EXPECT_THROW(SlowMount(dir / "none", dir / "slow", dir / "counts"), Error);
}

}  // namespace
}  // namespace heddle::test
