// SPDX-License-Identifier: MIT
// The statistics, an extended attribute of the root directory: each read gives one whole document.

#include <iostream>
#include <nlohmann/json.hpp>

#include "fuseovl/mount/stats_attribute.hpp"
#include "tests/overlay/mount_users.hpp"
#include "tests/overlay/overlay_support.hpp"

namespace heddle::test {
namespace {

using nlohmann::json;

class Stats : public ::testing::Test {
 protected:
  void SetUp() override {
    HEDDLE_NEEDS_FUSE();
    for (int i = 0; i < 400; ++i)
      write_text_file(dir_ / ("one/" + std::to_string(i)), std::string(10, 'x'));
    write_text_file(dir_ / "two/file", "two");
    MapMaker one, two;
    one.add_directory("v", dir_ / "one");
    one.write(dir_ / "map1");
    // A path so long that the document outgrows its buffer.
    two.add_directory("v", dir_ / "two");
    std::filesystem::create_directories(dir_ / long_directory_);
    two.write(dir_ / (long_directory_ + "map2"));
  }
  void mount(std::vector<std::string> options = {}) {
    options.insert(options.end(), {"--prefetch", "0", "--log", dir_ / "log"});
    mount_.emplace(dir_ / "map1", dir_ / "mnt", options);
  }

  TestDir dir_;
  const std::string long_directory_ = std::string(200, 'l') + "/" + std::string(200, 'm') + "/";
  std::optional<Mount> mount_;
};

TEST_F(Stats, statistics_are_whole_while_workers_die_and_maps_are_exchanged) {
  HEDDLE_NEEDS_RESEND();
  mount();
  std::atomic<int> read = 0, torn = 0;
  {
    std::vector<std::jthread> readers;
    for (int i = 0; i < 8; ++i)
      readers.emplace_back([&](const std::stop_token& stop) {
        for (; !stop.stop_requested(); ++read) {
          const auto text = read_stats_text(mount_->path()).value_or("");
          if (!json::accept(text) && ++torn == 1) ADD_FAILURE() << "'" << text << "'";
        }
      });
    int turn = 0;
    for (const auto end = std::chrono::steady_clock::now() + time_to_spend();
         std::chrono::steady_clock::now() < end; ++turn) {
      std::this_thread::sleep_for(kPace / 2);
      const auto map = dir_ / (turn % 4 == 1 ? long_directory_ + "map2" : "map1");
      if (turn % 2 == 0)
        ::kill(mount_->worker(), SIGKILL);
      else
        EXPECT_EQ(mount_->reload(map, {"--prefetch", "0"}).status, 0);
    }
  }
  std::cout << read << " read\n";
  EXPECT_EQ(torn, 0);
}

TEST_F(Stats, long_statistics_list_some_changed_files_and_count_all) {
  // 400 paths of 400 bytes exceed XATTR_SIZE_MAX.
  MapMaker maker;
  for (int i = 0; i < 400; ++i)
    write_text_file(dir_ / (long_directory_ + "src/" + std::to_string(i)), "as mapped");
  maker.add_directory("v", dir_ / (long_directory_ + "src"));
  maker.write(dir_ / "map1");
  for (int i = 0; i < 400; ++i)
    write_text_file(dir_ / (long_directory_ + "src/" + std::to_string(i)), "drifted");
  mount({"--on-drift", "warn"});
  const auto text = value_or_throw(read_stats_text(mount_->path()));
  EXPECT_LE(text.size(), kMostStatsBytes);
  const auto stats = json::parse(text);
  EXPECT_EQ(stats["drift_files"], 400);
  EXPECT_GT(stats["drift"].size(), 50U);
  EXPECT_LT(stats["drift"].size(), 400U);
  EXPECT_EQ(run({fs_mount(), "--stats", mount_->path()}).status, 0);
}

TEST_F(Stats, statistics_are_the_only_extended_attribute) {
  mount();
  char byte = 0;
  EXPECT_GT(::getxattr(mount_->path().c_str(), kStatsAttribute, nullptr, 0), 500);
  EXPECT_EQ(::getxattr(mount_->path().c_str(), kStatsAttribute, &byte, 1), -1);
  EXPECT_EQ(errno, ERANGE);
  EXPECT_EQ(::getxattr(mount_->path().c_str(), "user.heddle", nullptr, 0), -1);
  EXPECT_EQ(errno, ENODATA);
  EXPECT_EQ(::getxattr((*mount_ / "v").c_str(), kStatsAttribute, nullptr, 0), -1);
  EXPECT_EQ(errno, ENODATA);
}

}  // namespace
}  // namespace heddle::test
