// SPDX-License-Identifier: MIT
//
// What measurements with heddle-slowfs rely on: what each preset keeps, what is counted, and how
// many requests are served at once.
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

TEST_F(SlowFs, server_keeps_what_exists_for_a_second_and_nothing_else) {
  auto slow = mount({.preset = "server"});
  for (int i = 0; i < 100; ++i) {
    EXPECT_TRUE(exists(slow / "a/b/file"));
    EXPECT_FALSE(exists(slow / "a/none"));
  }
  auto counts = slow.counts();
  EXPECT_LT(counts.files.at("a/b/file").at("LOOKUP"), 50U);
  EXPECT_EQ(counts.missing.at("a/none"), (SlowCounts::Requests{{"LOOKUP", 100}}));
  EXPECT_TRUE(wait_until(std::chrono::seconds(20), [&] {
    slow.reset();
    EXPECT_TRUE(exists(slow / "a/b/file"));
    return slow.counts().files.contains("a/b/file");
  })) << "what exists is asked for again";
}

TEST_F(SlowFs, server_keeps_pages_and_closes_alone) {
  auto slow = mount({.preset = "server"});
  for (int i = 0; i < 3; ++i)
    EXPECT_EQ(value_or_throw(read_file(slow / "a/b/file")), std::string(3U << 20, 'x'));
  const auto counts = slow.counts();
  const auto& file = counts.files.at("a/b/file");
  EXPECT_EQ(file.at("OPEN"), 3U);
  EXPECT_LT(file.at("READ"), 9U);
  EXPECT_FALSE(file.contains("RELEASE"));
}

TEST_F(SlowFs, nfs_keeps_missing_names_too) {
  auto slow = mount({.preset = "nfs"});
  for (int i = 0; i < 3; ++i) EXPECT_FALSE(exists(slow / "a/none"));
  EXPECT_EQ(slow.counts().missing.at("a/none"), (SlowCounts::Requests{{"LOOKUP", 1}}));
}

TEST_F(SlowFs, lustre_keeps_what_exists_and_asks_for_each_missing_name) {
  auto slow = mount({.preset = "lustre"});
  for (int i = 0; i < 3; ++i) {
    EXPECT_TRUE(exists(slow / "a/b/file"));
    EXPECT_FALSE(exists(slow / "a/none"));
  }
  const auto counts = slow.counts();
  EXPECT_EQ(counts.files.at("a/b/file").at("LOOKUP"), 1U);
  EXPECT_EQ(counts.missing.at("a/none"), (SlowCounts::Requests{{"LOOKUP", 3}}));
}

TEST_F(SlowFs, server_answers_64_requests_at_a_time) {
  auto slow = mount({.delay_us = 500'000, .preset = "server"});
  {
    std::vector<std::jthread> threads;
    for (int i = 0; i < 100; ++i)
      threads.emplace_back([&, i] { EXPECT_FALSE(exists(slow / ("none" + std::to_string(i)))); });
  }
  const auto most = slow.counts().most_in_flight;
  EXPECT_GT(most, 32U);
  EXPECT_LE(most, 64U);
}

TEST_F(SlowFs, root_serves_other_users_only_what_modes_allow) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root can become another user";
  ::chmod(dir.path().c_str(), 0755);
  write_text_file(dir / "source/open", "text");
  write_text_file(dir / "source/secret", "text");
  ::chmod((dir / "source/secret").c_str(), 0600);
  auto slow = mount({.preset = "server"});
  const auto read_as_nobody = [&](const std::string& name) {
    return run(
        {"setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups", "cat", slow / name});
  };
  EXPECT_EQ(read_as_nobody("open").out, "text");
  EXPECT_NE(read_as_nobody("secret").status, 0);
}

TEST_F(SlowFs, unknown_presets_and_missing_directories_are_one_line) {
  for (const std::vector<std::string>& wrong :
       {std::vector<std::string>{"--preset", "fast", dir.path(), dir.path()},
        {dir / "none", dir.path()},
        {dir.path()},
        {"--delay-us", "-1", dir.path(), dir.path()}}) {
    std::vector<std::string> argv = {HEDDLE_SLOW_FS};
    argv.insert(argv.end(), wrong.begin(), wrong.end());
    const auto done = run(argv);
    EXPECT_NE(done.status, 0);
    EXPECT_EQ(std::count(done.err.begin(), done.err.end(), '\n'), 1) << done.err;
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
