// SPDX-License-Identifier: MIT
//
// What measurements with slow-fs rely on: it caches nothing, counts each request, and serves any
// number at once.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

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

}  // namespace
}  // namespace heddle::test
