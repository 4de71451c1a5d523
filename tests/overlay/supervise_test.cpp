// SPDX-License-Identifier: MIT
// A mount outlives the process that answers for it: nobody who uses it notices.

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <memory>
#include <optional>
#include <thread>

#include "base/fd.hpp"
#include "base/temp_dir.hpp"
#include "fuseovl/mount/stats_attribute.hpp"
#include "tests/overlay/mount_users.hpp"
#include "tests/support/build_elf.hpp"

namespace heddle::test {
namespace {

namespace fs = std::filesystem;
using namespace std::chrono_literals;
using ::testing::HasSubstr;

class Supervised : public ::testing::Test {
 protected:
  void SetUp() override {
    HEDDLE_NEEDS_FUSE();
    for (int i = 0; i < 20; ++i)
      write_text_file(dir_ / ("src/file" + std::to_string(i)), content(i));
    MapMaker maker;
    maker.add_directory("v", dir_ / "src");
    maker.write(dir_ / "map");
  }
  static std::string content(int i) {
    return std::string(static_cast<std::size_t>(300000 + i), static_cast<char>('a' + i));
  }
  std::string log() const { return read_file(dir_ / "log").value_or(""); }

  TestDir dir_;
};

TEST_F(Supervised, a_worker_killed_again_and_again_is_noticed_by_nobody) {
  HEDDLE_NEEDS_RESEND();
  Mount m(dir_ / "map", dir_ / "mnt", {"--log", dir_ / "log"});
  MountReaders users(m, content);
  std::uint64_t kills = 0;
  const auto end = std::chrono::steady_clock::now() + time_to_spend();
  while (std::chrono::steady_clock::now() < end) {
    std::this_thread::sleep_for(37ms);
    kills += ::kill(m.worker(), SIGKILL) == 0;
  }
  users.stop();
  EXPECT_EQ(users.wrong, 0) << log();
  EXPECT_GT(users.rounds, 50);
  EXPECT_GT(kills, 10U);
  EXPECT_EQ(m.stat_number("workers_lost"), kills);
  EXPECT_EQ(m.stat_number("supervisor_pid"), static_cast<std::uint64_t>(m.pid()));
  EXPECT_THAT(log(), HasSubstr("died of signal 9; "));
  EXPECT_EQ(children_of(m.pid()), std::vector<int>{m.worker()});
  EXPECT_EQ(m.unmount().status, 0);
  EXPECT_TRUE(wait_until(5s, [&] { return !is_running(m.pid()); }));
}

/// Programs that start and a compiler that works while something is done to the mount again and
/// again.
class Disturbed : public Supervised {
 protected:
  static void SetUpTestSuite() {
    if (::access("/dev/fuse", R_OK | W_OK) != 0 || ::geteuid() != 0) return;
    directory_ = value_or_throw(TempDir::create("heddle-workshop"));
    workshop_ = std::make_unique<Workshop>(directory_->path() + "/farm");
    maps_ = {workshop_->write_map(directory_->path() + "/map1"),
             workshop_->write_map(directory_->path() + "/map2", directory_->path() + "/copies")};
  }
  static void TearDownTestSuite() {
    workshop_.reset();
    directory_.reset();
  }
  void SetUp() override {
    Supervised::SetUp();
    if (IsSkipped()) return;
    mount_ = std::make_unique<Mount>(maps_[0], dir_ / "mnt",
                                     std::vector<std::string>{"--log", dir_ / "log"});
  }
  /// Calls `disturb` again and again for the time to spend, while there is work. How often.
  int work_while(const std::function<void(int)>& disturb) {
    int times = 0;
    Work work(*workshop_, *mount_);
    const auto end = std::chrono::steady_clock::now() + time_to_spend();
    for (; std::chrono::steady_clock::now() < end; ++times) disturb(times);
    work.stop();
    std::cout << times << " times, " << work.starts << " starts, " << work.compiled << " compiled, "
              << work.failed << " failed\n";
    EXPECT_EQ(work.failed, 0) << log();
    EXPECT_GT(work.starts, 0);
    EXPECT_GT(work.compiled, 0);
    return times;
  }
  /// No process but the two is left, and those end with the mount.
  void TearDown() override {
    if (!mount_) return;
    const int supervisor = static_cast<int>(mount_->stat_number("supervisor_pid"));
    EXPECT_TRUE(wait_until(5s, [&] { return children_of(supervisor).size() == 1; }));
    const int worker = mount_->worker();
    EXPECT_EQ(mount_->unmount().status, 0);
    EXPECT_TRUE(wait_until(30s, [&] {
      return !is_running(mount_->pid()) && !is_running(supervisor) && !is_running(worker);
    }));
  }

  static inline std::optional<TempDir> directory_;
  static inline std::unique_ptr<Workshop> workshop_;
  static inline std::vector<std::string> maps_;
  std::unique_ptr<Mount> mount_;
};

TEST_F(Disturbed, programs_start_and_compile_while_workers_die) {
  HEDDLE_NEEDS_RESEND();
  const int times = work_while([this](int) {
    std::this_thread::sleep_for(kPace);
    ::kill(mount_->worker(), SIGKILL);
  });
  EXPECT_GT(times, 5);
  EXPECT_EQ(mount_->stat_number("workers_lost"), static_cast<std::uint64_t>(times));
}

TEST_F(Disturbed, programs_start_and_compile_while_workers_stand_still) {
  const int worker = mount_->worker();
  work_while([this, worker](int) {
    std::this_thread::sleep_for(kPace);
    ::kill(worker, SIGSTOP);
    std::this_thread::sleep_for(2s);
    ::kill(worker, SIGCONT);
  });
  EXPECT_EQ(mount_->worker(), worker);
}

TEST_F(Disturbed, programs_start_and_compile_while_maps_are_exchanged) {
  const int times = work_while([this](int i) {
    std::this_thread::sleep_for(kPace);
    const auto reloaded =
        run({fs_mount(), "--reload", "--prefetch", "0", maps_[(i + 1) % 2], mount_->path()});
    EXPECT_EQ(reloaded.status, 0) << reloaded.err << log();
  });
  EXPECT_GT(times, 2);
  EXPECT_EQ(mount_->stat_number("workers_lost"), 0U);
}

/// HEDDLE_TEST_STARTS: how many (24,000 is what a full node of a large job makes).
TEST_F(Supervised, memory_and_descriptors_stay_what_they_are_over_many_starts) {
  const char* asked = std::getenv("HEDDLE_TEST_STARTS");
  const int all = asked ? std::atoi(asked) : 640;
  constexpr int kAtOnce = 64;
  const auto farm = ElfFarm::build(dir_ / "farm", {.libraries = 20, .tag = FarmTag::none});
  MapMaker maker;
  for (std::size_t i = 0; i < farm.libraries.size(); ++i)
    maker.add_name("app", farm.sonames[i], farm.libraries[i]);
  Mount m(maker.write(dir_ / "map2"), dir_ / "mnt");
  RunOptions options;
  options.env = {"LD_LIBRARY_PATH=" + m.path()};
  std::atomic<int> wrong = 0;
  const auto start = [&](int count) {
    std::atomic<int> left = count;
    std::vector<std::jthread> loops;
    for (int i = 0; i < kAtOnce; ++i)
      loops.emplace_back([&] {
        while (left-- > 0) wrong += run({farm.program}, options).out != farm.output;
        // Requests, too, not only what the kernel answers by itself.
        for (const auto& soname : farm.sonames) wrong += !read_uncached(m / soname);
      });
  };
  start(kAtOnce);
  const int worker = m.worker();
  const auto supervisor_before = footprint(m.pid()), worker_before = footprint(worker);
  start(all);
  const auto supervisor_after = footprint(m.pid()), worker_after = footprint(worker);
  std::cout << all << " starts, " << kAtOnce << " at a time: supervisor " << supervisor_before.kib
            << " -> " << supervisor_after.kib << " KiB, worker " << worker_before.kib << " -> "
            << worker_after.kib << " KiB, descriptors " << supervisor_after.fds << " and "
            << worker_after.fds << "\n";
  EXPECT_EQ(wrong, 0);
  EXPECT_EQ(m.worker(), worker);
  EXPECT_EQ(supervisor_after.fds, supervisor_before.fds);
  EXPECT_LE(worker_after.fds, worker_before.fds + 8);  // pipes for splice, of threads that came
  EXPECT_LT(supervisor_after.kib, supervisor_before.kib + 256);
  EXPECT_LT(worker_after.kib, worker_before.kib + 4096);  // buffers of those threads
}

TEST_F(Supervised, a_worker_that_stands_still_is_waited_for) {
  Mount m(dir_ / "map", dir_ / "mnt");
  MountReaders users(m, content);
  const int worker = m.worker();
  for (int i = 0; i < 3; ++i) {
    ::kill(worker, SIGSTOP);
    std::this_thread::sleep_for(300ms);
    ::kill(worker, SIGCONT);
    std::this_thread::sleep_for(50ms);
  }
  users.stop();
  EXPECT_EQ(users.wrong, 0);
  EXPECT_EQ(m.worker(), worker);
}

TEST_F(Supervised, one_killed_while_stopped_is_followed) {
  HEDDLE_NEEDS_RESEND();
  Mount m(dir_ / "map", dir_ / "mnt");
  MountReaders users(m, content);
  const int worker = m.worker();
  ::kill(worker, SIGSTOP);
  std::this_thread::sleep_for(100ms);  // requests pile up, read and unread
  ::kill(worker, SIGKILL);
  EXPECT_TRUE(wait_until(5s, [&] { return m.worker() != worker; }));
  std::this_thread::sleep_for(50ms);
  users.stop();
  EXPECT_EQ(users.wrong, 0);
}

TEST_F(Supervised, what_was_replaced_keeps_its_old_content_whoever_answers) {
  HEDDLE_NEEDS_RESEND();
  Mount m(dir_ / "map", dir_ / "mnt", {"--prefetch", "0"});
  write_text_file(dir_ / "new", "new content");
  fs::rename(dir_ / "new", dir_ / "src/file3");
  ::kill(m.worker(), SIGKILL);
  EXPECT_EQ(value_or_throw(read_uncached(m / "file3")), content(3));
}

TEST_F(Supervised, what_one_worker_refused_its_followers_refuse_and_report) {
  HEDDLE_NEEDS_RESEND();
  Mount m(dir_ / "map", dir_ / "mnt", {"--prefetch", "0"});
  std::ofstream(dir_ / "src/file4", std::ios::app) << "more";
  EXPECT_EQ(read_uncached(m / "file4").error().code(), EIO);
  ::kill(m.worker(), SIGKILL);
  EXPECT_EQ(read_uncached(m / "file4").error().code(), EIO);
  const auto stats = value_or_throw(read_stats_text(m.path()));
  EXPECT_THAT(stats, HasSubstr("changed in place while mounted"));
  EXPECT_EQ(m.stat_number("workers_lost"), 1U);
}

TEST_F(Supervised, attributes_stay_what_they_were) {
  HEDDLE_NEEDS_RESEND();
  Mount m(dir_ / "map", dir_ / "mnt");
  const auto stat_of = [&](const std::string& path) {
    return run_checked({"stat", "--cached=never", "-c", "%i %s %Y %Z %h %f", path}).out;
  };
  const auto root = stat_of(m.path()), file = stat_of(m / "file0");
  ::kill(m.worker(), SIGKILL);
  EXPECT_EQ(stat_of(m.path()), root);
  EXPECT_EQ(stat_of(m / "file0"), file);
}

TEST_F(Supervised, a_supervisor_that_is_killed_takes_its_worker_along) {
  Mount m(dir_ / "map", dir_ / "mnt");
  const int worker = m.worker();
  ::kill(m.pid(), SIGKILL);
  EXPECT_TRUE(wait_until(5s, [&] { return !is_running(m.pid()) && !is_running(worker); }));
  // ECONNABORTED: asked in the moment that it ended in.
  EXPECT_THAT(read_file(m / "a name not asked for yet").error().code(),
              ::testing::AnyOf(ENOTCONN, ECONNABORTED));
}

TEST_F(Supervised, a_signal_to_the_worker_is_one_to_the_daemon) {
  Mount m(dir_ / "map", dir_ / "mnt");
  const int worker = m.worker();
  ::kill(worker, SIGTERM);
  EXPECT_TRUE(wait_until(5s, [&] { return !is_running(m.pid()) && !is_running(worker); }));
  EXPECT_EQ(mounts_with(" " + m.path() + " "), 0U);
}

TEST_F(Supervised, where_the_kernel_sends_nothing_again_a_dead_worker_ends_the_mount) {
  if (kernel_resends()) HEDDLE_SKIP("this kernel sends again what a dead process had read");
  Mount m(dir_ / "map", dir_ / "mnt", {"--log", dir_ / "log", "--prefetch", "0"});
  const auto kept = value_or_throw(open_file(m / "file5", O_RDONLY));
  const int worker = m.worker();
  ::kill(worker, SIGSTOP);  // so that there is a request that nobody will answer
  std::jthread waits([&] { EXPECT_FALSE(read_uncached(m / "file6")); });
  ::kill(worker, SIGKILL);
  waits.join();
  EXPECT_TRUE(wait_until(10s, [&] { return !is_running(m.pid()); }));
  EXPECT_EQ(mounts_with(" " + m.path() + " "), 0U);
  EXPECT_THAT(log(), HasSubstr("died of signal 9: nothing can take the mount over"));
  char byte = 0;
  EXPECT_EQ(::pread(kept.get(), &byte, 1, 0), -1);
}

TEST_F(Supervised, workers_that_die_as_soon_as_they_start_end_the_mount) {
  HEDDLE_NEEDS_RESEND();
  Mount m(dir_ / "map", dir_ / "mnt", {"--log", dir_ / "log"});
  EXPECT_TRUE(wait_until(60s, [&] {
    for (const int child : children_of(m.pid())) ::kill(child, SIGKILL);
    return !is_running(m.pid());
  }));
  EXPECT_THAT(log(), HasSubstr("as those before it did"));
  EXPECT_EQ(mounts_with(" " + m.path() + " "), 0U);
}

}  // namespace
}  // namespace heddle::test
