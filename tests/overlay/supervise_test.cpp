// SPDX-License-Identifier: MIT
// A mount outlives its workers, unnoticed by its users.

#include <atomic>
#include <iostream>

#include "tests/overlay/mount_users.hpp"

namespace heddle::test {
namespace {

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

TEST_F(Supervised, readers_never_notice_killed_workers) {
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

TEST_F(Supervised, programs_start_while_workers_die) {
  HEDDLE_NEEDS_RESEND();
  const auto farm = ElfFarm::build(dir_ / "farm", {.libraries = 300, .tag = FarmTag::none});
  const Mount m(write_map(farm, dir_ / "farm-map"), dir_ / "mnt", {"--log", dir_ / "log"});
  Starts starts(farm, m);
  std::uint64_t kills = 0;
  for (const auto end = std::chrono::steady_clock::now() + time_to_spend();
       std::chrono::steady_clock::now() < end; ++kills) {
    std::this_thread::sleep_for(kPace);
    ::kill(m.worker(), SIGKILL);
  }
  starts.stop();
  std::cout << kills << " kills, " << starts.done << " starts, " << starts.failed << " failed\n";
  EXPECT_EQ(starts.failed, 0) << log();
  EXPECT_GT(starts.done, 0);
  EXPECT_GT(kills, 5U);
  EXPECT_EQ(m.stat_number("workers_lost"), kills);
}

/// HEDDLE_TEST_STARTS: number of starts (a full node of a large job makes 24,000).
TEST_F(Supervised, memory_and_descriptors_stay_constant_over_many_starts) {
  const char* asked = std::getenv("HEDDLE_TEST_STARTS");
  const int all = asked ? std::atoi(asked) : 640;
  constexpr int kAtOnce = 64;
  const auto farm = ElfFarm::build(dir_ / "farm", {.libraries = 20, .tag = FarmTag::none});
  Mount m(write_map(farm, dir_ / "map2"), dir_ / "mnt");
  RunOptions options;
  options.env = {"LD_LIBRARY_PATH=" + m.path()};
  std::atomic<int> wrong = 0;
  const auto start = [&](int count) {
    std::atomic<int> left = count;
    std::vector<std::jthread> loops;
    for (int i = 0; i < kAtOnce; ++i)
      loops.emplace_back([&] {
        while (left-- > 0) wrong += run({farm.program}, options).out != farm.output;
        // The kernel caches names; reads reach the daemon.
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
  EXPECT_LE(worker_after.fds, worker_before.fds + 8);  // splice pipes of new threads
  EXPECT_LT(supervisor_after.kib, supervisor_before.kib + 256);
  EXPECT_LT(worker_after.kib, worker_before.kib + 4096);  // their buffers
}

TEST_F(Supervised, stopped_worker_delays_readers_and_can_be_killed) {
  HEDDLE_NEEDS_RESEND();
  Mount m(dir_ / "map", dir_ / "mnt");
  MountReaders users(m, content);
  const int worker = m.worker();
  for (int i = 0; i < 3; ++i) {
    ::kill(worker, SIGSTOP);
    std::this_thread::sleep_for(300ms);
    ::kill(worker, SIGCONT);
    std::this_thread::sleep_for(50ms);
  }
  EXPECT_EQ(m.worker(), worker);
  ::kill(worker, SIGSTOP);
  std::this_thread::sleep_for(100ms);  // requests queue up, read and unread
  ::kill(worker, SIGKILL);
  EXPECT_TRUE(wait_until(5s, [&] { return m.worker() != worker; }));
  std::this_thread::sleep_for(50ms);
  users.stop();
  EXPECT_EQ(users.wrong, 0);
}

TEST_F(Supervised, new_worker_gives_the_same_answers) {
  HEDDLE_NEEDS_RESEND();
  Mount m(dir_ / "map", dir_ / "mnt", {"--prefetch", "0", "--log", dir_ / "log"});
  const auto stat_of = [&](const std::string& path) {
    return run_checked({"stat", "--cached=never", "-c", "%i %s %Y %Z %h %f", path}).out;
  };
  const auto root = stat_of(m.path()), file = stat_of(m / "file0");
  write_text_file(dir_ / "new", "new content");
  fs::rename(dir_ / "new", dir_ / "src/file3");
  fs::remove(dir_ / "src/file5");
  std::ofstream(dir_ / "src/file4", std::ios::app) << "more";
  EXPECT_EQ(read_uncached(m / "file4").error().code(), EIO);
  ::kill(m.worker(), SIGKILL);
  EXPECT_EQ(stat_of(m.path()), root);
  EXPECT_EQ(stat_of(m / "file0"), file);
  EXPECT_EQ(value_or_throw(read_uncached(m / "file3")), content(3)) << "replaced by rename";
  EXPECT_EQ(value_or_throw(read_uncached(m / "file5")), content(5)) << "removed";
  EXPECT_EQ(read_uncached(m / "file4").error().code(), EIO) << "changed in place";
  EXPECT_EQ(m.stat_number("drift_files"), 1U);
  EXPECT_EQ(m.stat_number("workers_lost"), 1U);
  EXPECT_THAT(log(), HasSubstr("file4: answered with an error"));
}

TEST_F(Supervised, killed_supervisor_takes_its_worker_along) {
  Mount m(dir_ / "map", dir_ / "mnt");
  const int worker = m.worker();
  ::kill(m.pid(), SIGKILL);
  EXPECT_TRUE(wait_until(5s, [&] { return !is_running(m.pid()) && !is_running(worker); }));
  // ECONNABORTED: a request at the moment of the end.
  EXPECT_THAT(read_file(m / "uncached name").error().code(),
              ::testing::AnyOf(ENOTCONN, ECONNABORTED));
}

TEST_F(Supervised, signal_to_the_worker_ends_the_daemon) {
  Mount m(dir_ / "map", dir_ / "mnt");
  const int worker = m.worker();
  ::kill(worker, SIGTERM);
  EXPECT_TRUE(wait_until(5s, [&] { return !is_running(m.pid()) && !is_running(worker); }));
  EXPECT_EQ(mounts_with(" " + m.path() + " "), 0U);
}

TEST_F(Supervised, workers_that_die_at_start_end_the_mount) {
  HEDDLE_NEEDS_RESEND();
  Mount m(dir_ / "map", dir_ / "mnt", {"--log", dir_ / "log"});
  EXPECT_TRUE(wait_until(60s, [&] {
    for (const int child : children_of(m.pid())) ::kill(child, SIGKILL);
    return !is_running(m.pid());
  }));
  EXPECT_THAT(log(), HasSubstr("after 10 workers in a row"));
  EXPECT_EQ(mounts_with(" " + m.path() + " "), 0U);
}

}  // namespace
}  // namespace heddle::test
