// SPDX-License-Identifier: MIT
// An unresponsive file system blocks only requests for its own files.

#include <atomic>

#include "tests/overlay/mount_users.hpp"
#include "tests/overlay/origin_fs.hpp"
#include "tests/overlay/overlay_support.hpp"
#include "tests/support/slow_mount.hpp"

namespace heddle::test {
namespace {

class Hang : public ::testing::Test {
 protected:
  void SetUp() override {
    HEDDLE_NEEDS_FUSE();
    for (int i = 0; i < 12; ++i) write_text_file(dir_ / ("src/far" + std::to_string(i)), far_);
    for (int i = 0; i < 12; ++i) write_text_file(dir_ / ("near/near" + std::to_string(i)), near_);
    origin_.emplace(dir_ / "src", dir_ / "far");
    MapMaker maker;
    for (int i = 0; i < 12; ++i) {
      maker.add_name("v", "far" + std::to_string(i), *origin_ / ("far" + std::to_string(i)));
      maker.add_name("v", "near" + std::to_string(i), dir_ / ("near/near" + std::to_string(i)));
    }
    maker.write(dir_ / "map");
  }
  void mount(const std::string& timeout) {
    mount_.emplace(dir_ / "map", dir_ / "mnt",
                   std::vector<std::string>{"--log", dir_ / "log", "--prefetch", "0",
                                            "--origin-timeout", timeout});
  }
  /// Runs fs-mount, which may fail.
  RunResult run_mount(std::vector<std::string> options, const std::string& map = {}) {
    std::filesystem::create_directories(dir_ / "mnt");
    options.insert(options.begin(), {fs_mount(), "--log", dir_ / "log", "--prefetch", "0"});
    options.insert(options.end(), {map.empty() ? dir_ / "map" : map, dir_ / "mnt"});
    return run(options, {.deadline = 20s});
  }
  static RunResult verify(const std::string& map) {
    return run({fs_mount(), "--origin-timeout", "0.5", "--verify", map}, {.deadline = 20s});
  }
  Result<std::string> read(const std::string& name) { return read_uncached(*mount_ / name); }
  std::string log() const { return read_file(dir_ / "log").value_or(""); }
  /// Reads all far files in parallel, each until its answer.
  std::vector<std::jthread> read_far(const std::function<void(const Result<std::string>&)>& take) {
    std::vector<std::jthread> out;
    for (int i = 0; i < 12; ++i)
      out.emplace_back([this, take, i] { take(read("far" + std::to_string(i))); });
    return out;
  }
  void expect_others_served() {
    for (int i = 0; i < 12; ++i) EXPECT_EQ(value_or_throw(read("near" + std::to_string(i))), near_);
    EXPECT_EQ(read("none").error().code(), ENOENT);
    EXPECT_GT(mount_->stat_number("requests_total"), 0U);
  }

  TestDir dir_;
  const std::string far_ = std::string(50'000, 'f');
  const std::string near_ = std::string(50'000, 'n');
  std::optional<OriginFs> origin_;
  std::optional<Mount> mount_;
};

TEST_F(Hang, hung_file_system_blocks_only_its_own_files_until_the_timeout) {
  mount("1");
  origin_->hang_reads();
  std::atomic<int> errors = 0;
  auto readers = read_far([&](auto& got) { errors += !got && got.error().code() == EIO; });
  // More readers wait than the daemon has threads.
  for (int i = 0; i < 20; ++i) expect_others_served();
  readers.clear();
  EXPECT_EQ(errors, 12);
  EXPECT_THAT(log(), HasSubstr("its file system has not answered for 1 s"));
  origin_->answer();
  EXPECT_TRUE(wait_until(10s, [&] {
    const auto got = read("far3");
    return got && *got == far_;
  }));
  EXPECT_THAT(log(), HasSubstr("answers again"));
}

TEST_F(Hang, short_hang_delays_reads_and_fails_none) {
  for (const char* timeout : {"60", "0"}) {
    mount(timeout);
    origin_->hang_reads();
    std::atomic<int> right = 0;
    auto readers = read_far([&](auto& got) { right += got && *got == far_; });
    expect_others_served();
    origin_->answer();
    readers.clear();
    EXPECT_EQ(right, 12) << timeout;
  }
}

TEST_F(Hang, slow_file_system_does_not_time_out) {
  // Reads that take together longer than the timeout, and each far shorter.
  MapMaker maker;
  for (int i = 0; i < 100; ++i) {
    const auto name = "slow" + std::to_string(i);
    maker.add_name("v", name, write_text_file(dir_ / ("near/" + name), near_));
  }
  maker.write(dir_ / "map");
  const SlowMount slow(dir_ / "near", dir_ / "near", dir_ / "counts", {.delay_us = 60'000});
  mount("0.5");
  const auto begin = std::chrono::steady_clock::now();
  std::atomic<int> right = 0;
  {
    std::vector<std::jthread> readers;
    for (int i = 0; i < 100; ++i)
      readers.emplace_back([&, i] {
        const auto got = read("slow" + std::to_string(i));
        right += got && *got == near_;
      });
  }
  EXPECT_EQ(right, 100) << log();
  EXPECT_GT(std::chrono::steady_clock::now() - begin, 500ms);
  mount_.reset();
}

TEST_F(Hang, hung_getattr_blocks_only_its_own_files) {
  mount("1");
  origin_->hang();
  std::jthread reader([&] { EXPECT_EQ(read("far1").error().code(), EIO); });
  expect_others_served();
  reader.join();
  expect_others_served();
}

TEST_F(Hang, unmount_and_signals_end_a_daemon_with_blocked_readers) {
  HEDDLE_NEEDS_PIDFD_THREAD();
  for (const bool by_signal : {false, true}) {
    mount("1");
    origin_->hang_reads();
    EXPECT_EQ(read("far5").error().code(), EIO);
    const int daemon = mount_->pid();
    if (by_signal)
      ::kill(daemon, SIGTERM);
    else
      EXPECT_EQ(mount_->unmount().status, 0);
    EXPECT_TRUE(wait_until(5s, [&] { return !is_running(daemon); })) << by_signal;
    EXPECT_EQ(mounts_with(" " + mount_->path() + " "), 0U);
    origin_->answer();
  }
}

TEST_F(Hang, worker_killed_while_reads_block_is_replaced) {
  HEDDLE_NEEDS_PIDFD_THREAD();
  HEDDLE_NEEDS_RESEND();
  mount("30");
  origin_->hang_reads();
  std::jthread reader([&] { EXPECT_EQ(value_or_throw(read("far6")), far_); });
  const int worker = mount_->worker();
  ASSERT_TRUE(wait_until(5s, [&] { return origin_->held() > 0; }));
  ::kill(worker, SIGKILL);
  expect_others_served();
  origin_->answer();
  reader.join();
}

TEST_F(Hang, mount_of_hung_origins_fails_with_one_line) {
  origin_->hang();
  const auto refused = run_mount({"--origin-timeout", "0.5"});
  EXPECT_EQ(refused.status, 3);
  EXPECT_THAT(refused.err, AllOf(HasSubstr("/far/far"), HasSubstr("cannot be checked: its file "
                                                                  "system has not answered for "
                                                                  "500 ms")));
  EXPECT_THAT(refused.err, HasSubstr("hint: --on-drift warn"));
  EXPECT_EQ(std::count(refused.err.begin(), refused.err.end(), '\n'), 2) << refused.err;
  EXPECT_EQ(mounts_with(" " + (dir_ / "mnt") + " "), 0U);
  // Behind symbolic links the timeout holds too.
  origin_->answer();
  MapMaker maker;
  std::filesystem::create_directories(dir_ / "links");
  std::filesystem::create_symlink(*origin_ / "far0", dir_ / "links/file");
  std::filesystem::create_directory_symlink(origin_->directory(), dir_ / "links/directory");
  for (const char* name : {"near/near0", "links/file", "links/directory/far1"})
    maker.add_name("v", name, dir_ / name);
  maker.write(dir_ / "linked");
  origin_->hang();
  EXPECT_THAT(run_mount({"--origin-timeout", "0.5"}, dir_ / "linked").err,
              HasSubstr("cannot be checked: its file system has not answered"));
  origin_->answer();
  mount("1");
  EXPECT_EQ(value_or_throw(read("far0")), far_);
}

TEST_F(Hang, mount_with_on_drift_warn_omits_hung_origins) {
  origin_->hang();
  const auto mounted = run_mount({"--origin-timeout", "0.5", "--on-drift", "warn"});
  ASSERT_EQ(mounted.status, 0) << mounted.err;
  EXPECT_THAT(mounted.err, HasSubstr("far11: its file system has not answered for 500 ms"));
  EXPECT_THAT(mounted.err, Not(HasSubstr("near")));
  for (int i = 0; i < 12; ++i)
    EXPECT_EQ(value_or_throw(read_file(dir_ / ("mnt/v/near" + std::to_string(i)))), near_);
  EXPECT_EQ(read_file(dir_ / "mnt/v/far0").error().code(), ENOENT);
  EXPECT_EQ(run({fs_mount(), "-u", dir_ / "mnt"}).status, 0);
  origin_->answer();
}

TEST_F(Hang, mount_of_a_hung_map_fails_with_one_line) {
  write_text_file(dir_ / "src/map", value_or_throw(read_file(dir_ / "map")));
  for (const bool reads_only : {false, true}) {
    reads_only ? origin_->hang_reads() : origin_->hang();
    const auto refused = run_mount({"--origin-timeout", "0.5"}, *origin_ / "map");
    EXPECT_EQ(refused.status, 3);
    EXPECT_THAT(refused.err, HasSubstr("/far/map: cannot be read: its file system has not answered "
                                       "for 500 ms\nhint: --origin-timeout"));
    EXPECT_EQ(std::count(refused.err.begin(), refused.err.end(), '\n'), 2) << refused.err;
    EXPECT_EQ(mounts_with(" " + (dir_ / "mnt") + " "), 0U);
    const auto verified = verify(*origin_ / "map");
    EXPECT_EQ(verified.status, 3);
    EXPECT_THAT(verified.err, HasSubstr("its file system has not answered for 500 ms"));
    origin_->answer();
  }
  EXPECT_EQ(run_mount({}, *origin_ / "map").status, 0);
  EXPECT_EQ(value_or_throw(read_file(dir_ / "mnt/.heddle/map")),
            value_or_throw(read_file(dir_ / "map")));
  EXPECT_EQ(run({fs_mount(), "-u", dir_ / "mnt"}).status, 0);
}

TEST_F(Hang, verify_names_hung_files_and_compares_the_others) {
  write_text_file(dir_ / "near/near3", std::string(50'000, 'N'));
  for (const bool reads_only : {false, true}) {
    reads_only ? origin_->hang_reads() : origin_->hang();
    const auto verified = verify(dir_ / "map");
    EXPECT_EQ(verified.status, 3);
    for (int i = 0; i < 12; ++i)
      EXPECT_THAT(verified.out, HasSubstr("/far/far" + std::to_string(i) +
                                          ": its file system has not answered for 500 ms\n"));
    EXPECT_THAT(verified.out, HasSubstr("/near/near3: content changed\n"));
    EXPECT_EQ(std::count(verified.out.begin(), verified.out.end(), '\n'), 14) << verified.out;
    EXPECT_THAT(verified.out, HasSubstr("map: 11 of 24 files are what the map says\n"));
    EXPECT_THAT(verified.err,
                HasSubstr("cannot be verified: 12 of 24 files did not answer\nhint: --origin"));
    origin_->answer();
  }
  const auto verified = verify(dir_ / "map");
  EXPECT_EQ(verified.status, 1) << verified.err;
  EXPECT_EQ(std::count(verified.out.begin(), verified.out.end(), '\n'), 2) << verified.out;
}

TEST_F(Hang, reload_to_a_hung_map_or_origin_fails_in_time) {
  MapMaker maker;
  maker.add_name("v", "near0", dir_ / "near/near0");
  maker.write(dir_ / "src/map2");
  maker.add_name("v", "far0", *origin_ / "far0");
  maker.write(dir_ / "map3");
  mount("1");
  const auto reload = [&](const std::string& map) {
    return mount_->reload(map, {"--prefetch", "0", "--origin-timeout", "0.5"});
  };
  for (const bool reads_only : {false, true}) {
    reads_only ? origin_->hang_reads() : origin_->hang();
    const auto refused = reload(*origin_ / "map2");
    EXPECT_EQ(refused.status, 3);
    EXPECT_THAT(refused.err, HasSubstr("/far/map2: cannot be read: its file system has not "
                                       "answered for 500 ms"));
    expect_others_served();
    origin_->answer();
  }
  origin_->hang();
  EXPECT_THAT(reload(dir_ / "map3").err,
              HasSubstr("far0: cannot be checked: its file system has not answered"));
  expect_others_served();
  origin_->answer();
  EXPECT_EQ(reload(*origin_ / "map2").status, 0);
  EXPECT_THAT(mount_->stat_text("map"), HasSubstr("map2"));
}

TEST_F(Hang, hung_current_map_fails_only_its_own_reload) {
  std::filesystem::rename(dir_ / "map", dir_ / "src/map");
  std::filesystem::create_symlink(*origin_ / "map", dir_ / "map");
  MapMaker maker;
  for (int i = 0; i < 12; ++i)
    maker.add_name("v", "near" + std::to_string(i), dir_ / ("near/near" + std::to_string(i)));
  maker.write(dir_ / "map2");
  mount("1");
  origin_->hang();
  const std::vector<std::string> options{"--prefetch", "0", "--origin-timeout", "1"};
  const auto refused = mount_->reload({}, options);
  EXPECT_EQ(refused.status, 3) << refused.err << log();
  EXPECT_THAT(refused.err, StartsWith("fs-mount: "));
  EXPECT_EQ(refused.err.find("\nfs-mount: "), std::string::npos) << refused.err;
  expect_others_served();
  // The daemon has the names of the old map in memory.
  const auto done = mount_->reload(dir_ / "map2", options);
  EXPECT_EQ(done.status, 0) << done.err << log();
  expect_others_served();
}

TEST_F(Hang, second_signal_ends_a_daemon_with_blocked_readers) {
  for (const char* timeout : {"60", "0"}) {
    mount(timeout);
    const auto held = origin_->held();
    origin_->hang_reads();
    std::jthread reader([&] { EXPECT_FALSE(read("far7")) << timeout; });
    ASSERT_TRUE(wait_until(5s, [&] { return origin_->held() > held; }));
    ::kill(mount_->pid(), SIGTERM);
    EXPECT_TRUE(wait_until(5s, [&] { return mounts_with(" " + mount_->path() + " ") == 0; }));
    ::kill(mount_->pid(), SIGTERM);
    EXPECT_TRUE(wait_until(5s, [&] { return !is_running(mount_->pid()); }));
    origin_->answer();
  }
}

}  // namespace
}  // namespace heddle::test
