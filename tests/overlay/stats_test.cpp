// SPDX-License-Identifier: MIT
// `.heddle/stats`: whoever opens it reads one whole document, of one moment.

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <functional>
#include <iostream>
#include <nlohmann/json.hpp>
#include <optional>
#include <thread>
#include <vector>

#include "base/fd.hpp"
#include "fuseovl/overlay/serving_state.hpp"
#include "fuseovl/session/shared.hpp"
#include "tests/overlay/mount_users.hpp"
#include "tests/overlay/overlay_support.hpp"
#include "tests/support/build_elf.hpp"

namespace heddle::test {
namespace {

using namespace std::chrono_literals;
using nlohmann::json;

class Stats : public ::testing::Test {
 protected:
  void SetUp() override {
    HEDDLE_NEEDS_FUSE();
    for (int i = 0; i < 400; ++i)
      write_text_file(dir_ / ("one/" + std::to_string(i)), std::string(10, 'x'));
    write_text_file(dir_ / "two/file", "two");
    MapMaker one, two;
    one.add_folder("v", dir_ / "one");
    one.write(dir_ / "map1");
    // A path so long that the page grows by more than any room that it had before.
    two.add_folder("v", dir_ / "two");
    std::filesystem::create_directories(dir_ / long_folder_);
    two.write(dir_ / (long_folder_ + "map2"));
  }
  std::string other_map() const { return dir_ / (long_folder_ + "map2"); }
  void reload(const std::string& map) const {
    const auto done = mount_->reload(map, {"--prefetch", "0"});
    EXPECT_EQ(done.status, 0) << done.err;
  }
  void kill_worker() const {
    const int worker = mount_->worker();
    ::kill(worker, SIGKILL);
    EXPECT_TRUE(wait_until(10s, [&] { return mount_->worker() != worker; }));
  }
  void mount(std::vector<std::string> options = {}) {
    options.insert(options.end(), {"--prefetch", "0", "--log", dir_ / "log"});
    mount_.emplace(dir_ / "map1", dir_ / "mnt", options);
  }
  std::string page() const { return *mount_ / ".heddle/stats"; }

  TestDir dir_;
  const std::string long_folder_ = std::string(200, 'l') + "/" + std::string(200, 'm') + "/";
  std::optional<Mount> mount_;
};

/// Reads what `fd` still has, a few bytes at a time and none of them from the page cache.
std::string read_slowly(
    const Fd& fd, const std::function<void()>& between = [] {}) {
  std::string out;
  char bytes[50];
  for (ssize_t n; (n = ::read(fd.get(), bytes, sizeof(bytes))) > 0; between()) {
    out.append(bytes, static_cast<std::size_t>(n));
    ::posix_fadvise(fd.get(), 0, 0, POSIX_FADV_DONTNEED);
  }
  return out;
}

TEST_F(Stats, that_are_read_slowly_are_of_the_moment_of_opening) {
  HEDDLE_NEEDS_RESEND();
  mount({"--on-drift", "warn"});
  const auto opened = value_or_throw(open_file(page(), O_RDONLY));
  const int worker = mount_->worker();
  int round = 0;
  const auto text = read_slowly(opened, [&] {
    ++round;
    if (round == 2) kill_worker();
    if (round == 4) write_text_file(dir_ / "one/1", "drifted"), (void)read_uncached(*mount_ / "1");
    if (round == 6) reload(other_map());
    (void)mount_->stat_number("views");
  });
  EXPECT_GT(round, 8);
  struct stat st {};
  EXPECT_EQ(::fstat(opened.get(), &st), 0);
  EXPECT_EQ(static_cast<std::size_t>(st.st_size), text.size());
  const auto stats = json::parse(text, nullptr, false);
  ASSERT_TRUE(stats.is_object()) << text;
  EXPECT_EQ(stats["worker_pid"], worker);
  EXPECT_THAT(stats["map"], ::testing::EndsWith("map1"));
}

TEST_F(Stats, are_whole_for_every_reader_while_workers_die_and_maps_are_exchanged) {
  HEDDLE_NEEDS_RESEND();
  mount();
  std::atomic<int> read = 0, torn = 0;
  {
    std::vector<std::jthread> readers;
    for (int i = 0; i < 8; ++i)
      readers.emplace_back([&](const std::stop_token& stop) {
        for (; !stop.stop_requested(); ++read) {
          const auto text = run({"cat", page()}).out;
          if (!json::accept(text) && ++torn == 1) ADD_FAILURE() << "'" << text << "'";
        }
      });
    int turn = 0;
    for (const auto end = std::chrono::steady_clock::now() + time_to_spend();
         std::chrono::steady_clock::now() < end; ++turn) {
      std::this_thread::sleep_for(kPace / 2);
      if (turn % 2 == 0)
        kill_worker();
      else
        reload(turn % 4 == 1 ? other_map() : dir_ / "map1");
    }
  }
  std::cout << read << " read\n";
  EXPECT_EQ(torn, 0);
}

TEST_F(Stats, that_are_long_are_whole_too_and_stale_when_their_worker_has_died) {
  HEDDLE_NEEDS_RESEND();
  for (int i = 0; i < 400; ++i) write_text_file(dir_ / ("one/" + std::to_string(i)), "drifted");
  mount({"--on-drift", "warn"});
  const auto opened = value_or_throw(open_file(page(), O_RDONLY));
  const auto lost = value_or_throw(open_file(page(), O_RDONLY));
  const auto text = read_slowly(opened, [&] { (void)mount_->stat_number("views"); });
  EXPECT_GT(text.size(), 20'000U);
  EXPECT_EQ(json::parse(text)["drift"].size(), 400U);
  kill_worker();
  char byte = 0;
  EXPECT_EQ(::read(lost.get(), &byte, 1), -1);
  EXPECT_EQ(errno, ESTALE);
  EXPECT_EQ(run({fs_mount(), "--stats", mount_->path()}).status, 0);
}

TEST_F(Stats, are_one_file_that_can_be_copied) {
  mount();
  const auto copied = run({"cp", page(), dir_ / "copy"});
  EXPECT_EQ(copied.status, 0) << copied.err;
  EXPECT_TRUE(json::accept(value_or_throw(read_file(dir_ / "copy"))));
  struct stat first {
  }, second{};
  EXPECT_EQ(::stat(page().c_str(), &first), 0);
  EXPECT_EQ(::stat(page().c_str(), &second), 0);
  EXPECT_EQ(first.st_ino, second.st_ino);
}

/// Its rooms are a megabyte, of which a mount uses a page or two: to touch all takes longer than
/// the rest of fs-mount's start.
TEST(StatsMemory, is_not_touched_before_it_is_used) {
  const Shared<ServingState> state;
  const auto page = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  std::vector<unsigned char> pages((sizeof(ServingState) + page - 1) / page);
  ASSERT_EQ(::mincore(&*state, sizeof(ServingState), pages.data()), 0);
  const auto touched =
      std::count_if(pages.begin(), pages.end(), [](auto flags) { return (flags & 1) != 0; });
  EXPECT_LT(touched, 16) << "of " << pages.size();
}

TEST_F(Stats, need_no_more_memory_however_often_they_are_read) {
  mount();
  const auto read_often = [&] {
    for (int i = 0; i < 500; ++i) (void)mount_->stat_number("views");
  };
  read_often();
  const auto before = footprint(mount_->worker()).kib;
  read_often();
  // A page of 16 KiB kept for each would be 8 MiB; a thread that comes to work only now needs some.
  EXPECT_LT(footprint(mount_->worker()).kib, before + 2048);
}

}  // namespace
}  // namespace heddle::test
