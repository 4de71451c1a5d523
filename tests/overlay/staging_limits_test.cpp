// SPDX-License-Identifier: MIT
// fs-mount --stage: directories that are full, damaged, small or closed cost nothing but the
// copies.

#include <gmock/gmock.h>
#include <signal.h>
#include <sys/stat.h>

#include <atomic>
#include <fstream>
#include <memory>
#include <random>
#include <thread>

#include "fuseovl/mount/stats_attribute.hpp"
#include "tests/overlay/origin_fs.hpp"
#include "tests/overlay/staging_support.hpp"

namespace heddle::test {
namespace {

namespace fs = std::filesystem;
using namespace std::chrono_literals;
using ::testing::HasSubstr;
using ::testing::Not;

TEST_F(Staged, damaged_copies_are_never_served) {
  {
    const Mount m(dir_ / "map", dir_ / "mnt", options());
    ASSERT_EQ(staging(m), "done");
  }
  write_text_file(copy_of(0), content(0).substr(0, 4096));
  write_text_file(copy_of(1), std::string(content(1).size(), 'Z'));
  write_text_file(copy_of(2), "");
  const Mount m(dir_ / "map", dir_ / "mnt", options());
  EXPECT_EQ(right(m), kFiles);
  EXPECT_EQ(staging(m), "done");
  EXPECT_EQ(right(m), kFiles);
  EXPECT_EQ(read_file(copy_of(1)).value(), content(1));
  // While it is served: its origin goes on.
  std::fstream(copy_of(3)) << "changed";
  fs::remove(copy_of(4));
  EXPECT_EQ(right(m), kFiles);
  EXPECT_THAT(log(), HasSubstr("a staged copy is not used any more: has changed"));
}

TEST_F(Staged, directories_that_cannot_be_used_cost_the_copies_only) {
  mount_tmpfs(dir_ / "readonly", "", MS_RDONLY);
  mount_tmpfs(dir_ / "full", "size=64k");
  mount_tmpfs(dir_ / "half", "size=1m");
  fs::create_directory(dir_ / "others");
  ::chown((dir_ / "others").c_str(), 12345, 12345);
  write_text_file(dir_ / "file", "");
  int n = 0;
  for (const char* name : {"readonly", "full", "half", "others", "file", "missing"}) {
    SCOPED_TRACE(name);
    fs::remove(dir_ / "log");
    const Mount m(dir_ / "map", dir_ / ("mnt" + std::to_string(n++)), options(name));
    const auto state = staging(m);
    EXPECT_TRUE(state == "none" || state == "incomplete") << state;
    EXPECT_EQ(right(m), kFiles);
    if (state == "incomplete") {
      EXPECT_THAT(log(), HasSubstr("not everything is staged"));
    }
  }
  fs::create_directory(dir_ / "mnt-said");
  const auto said = run({fs_mount(), "--stage", dir_ / "missing", dir_ / "map", dir_ / "mnt-said"});
  mounted_.push_back(dir_ / "mnt-said");
  EXPECT_EQ(said.status, 0);
  EXPECT_THAT(said.err, HasSubstr("missing: cannot stage there: No such file"));
}

TEST_F(Staged, a_noexec_directory_does) {
  mount_tmpfs(dir_ / "noexec", "", MS_NOEXEC | MS_NOSUID | MS_NODEV);
  const Mount m(dir_ / "map", dir_ / "mnt", options("noexec"));
  EXPECT_EQ(staging(m), "done");
  EXPECT_EQ(right(m), kFiles);
}

TEST_F(Staged, the_budget_is_kept_and_the_least_used_makes_room) {
  const Mount m(dir_ / "map", dir_ / "mnt", options("node", {"--budget", "1M"}));
  EXPECT_EQ(staging(m), "incomplete");
  EXPECT_EQ(m.stat_number("staged"), 5U);
  EXPECT_LE(m.stat_number("staged_bytes"), 1U << 20);
  EXPECT_EQ(right(m), kFiles);
  EXPECT_THAT(log(), HasSubstr("the budget"));
}

TEST_F(Staged, the_budget_is_kept_by_many_mounts_that_stage_at_once) {
  constexpr int kMounts = 4;
  constexpr std::uintmax_t kBudget = 3U << 20;  // less than one of them has
  std::vector<std::unique_ptr<Mount>> mounts;
  std::uintmax_t most = 0;
  const auto look = [&] {
    std::uintmax_t sum = 0;
    std::error_code gone;
    for (const char* part : {"/../objects", "/../copying"})
      for (const auto& entry : fs::directory_iterator(objects() + part, gone)) {
        const auto size = entry.file_size(gone);
        sum += gone ? 0 : size;
      }
    most = std::max(most, sum);
  };
  for (int n = 0; n < kMounts; ++n) {
    MapMaker maker;
    for (int i = 0; i < kFiles; ++i)
      maker.add_name(
          "v", "file" + std::to_string(i),
          write_text_file(dir_ / ("src" + std::to_string(n) + "/file" + std::to_string(i)),
                          content(i) + std::to_string(n)));
    maker.write(dir_ / ("map" + std::to_string(n)));
  }
  std::atomic<bool> looking = true;
  std::thread looker([&] {
    while (looking) look();
  });
  for (int n = 0; n < kMounts; ++n)
    mounts.push_back(std::make_unique<Mount>(dir_ / ("map" + std::to_string(n)),
                                             dir_ / ("mnt" + std::to_string(n)),
                                             options("node", {"--budget", "3M"})));
  for (const auto& m : mounts) EXPECT_EQ(staging(*m), "incomplete");
  looking = false;
  looker.join();
  EXPECT_LE(most, kBudget);
  EXPECT_GT(most, kBudget / 2);
}

TEST_F(Staged, a_disk_that_is_as_full_as_the_budget_costs_copies_only) {
  // Less room than the budget for the directories' own blocks; a copy that nobody uses makes room.
  mount_tmpfs(dir_ / "small", "size=3500k");
  {
    const Mount m(dir_ / "map", dir_ / "mnt", options("small", {"--budget", "3500K"}));
    EXPECT_EQ(staging(m), "done") << log();
    EXPECT_EQ(right(m), kFiles);
  }
  MapMaker maker;
  for (int i = 0; i < kFiles; ++i)
    maker.add_name("v", "file" + std::to_string(i),
                   write_text_file(dir_ / ("other/file" + std::to_string(i)), content(15 - i)));
  write_text_file(dir_ / "other/more", std::string(500'000, 'm'));
  maker.add_name("v", "more", dir_ / "other/more");
  write_text_file(dir_ / "other/new", std::string(1'000'000, 'n'));
  maker.add_name("v", "new", dir_ / "other/new");
  maker.write(dir_ / "map2");
  const Mount m(dir_ / "map2", dir_ / "mnt2", options("small", {"--budget", "8M"}));
  EXPECT_EQ(staging(m), "incomplete");
  EXPECT_THAT(log(), HasSubstr("not everything is staged: "));
  EXPECT_THAT(log(), HasSubstr("No space left on device"));
  EXPECT_EQ(read(m, 0).value(), content(15));
  EXPECT_EQ(read_file(m / "new").value(), std::string(1'000'000, 'n'));
}

TEST_F(Staged, a_power_cut_at_any_moment_leaves_nothing_wrong) {
  const int rounds = std::getenv("HEDDLE_TEST_SECONDS") ? 200 : 12;
  std::mt19937 random(11);
  for (int round = 0; round < rounds; ++round) {
    const Mount m(dir_ / "map", dir_ / "mnt", options());
    ::usleep(std::uniform_int_distribution<useconds_t>(0, 12'000)(random));
    ::kill(-m.pid(), SIGKILL);
    ::kill(m.pid(), SIGKILL);
    ASSERT_TRUE(wait_until(5s, [&] { return !is_running(m.pid()); }));
    ::umount2(m.path().c_str(), MNT_DETACH);
    for (const auto& entry : fs::directory_iterator(objects())) {
      const auto name = entry.path().filename().string();
      ASSERT_EQ(hash_bytes(value_or_throw(read_file(entry.path()))).hex(), name);
      if (round % 2 == 1) fs::remove(entry.path());
    }
  }
  const Mount m(dir_ / "map", dir_ / "mnt", options());
  EXPECT_EQ(staging(m), "done");
  EXPECT_EQ(right(m), kFiles);
}

TEST_F(Staged, ten_thousand_objects_are_served_with_256_descriptors) {
  constexpr int kMany = 10'000;
  MapMaker maker;
  fs::create_directories(dir_ / "many");
  for (int i = 0; i < kMany; ++i) {
    const auto path = dir_ / ("many/f" + std::to_string(i));
    std::ofstream(path) << "content " << i;
    maker.add_name("v", "f" + std::to_string(i), path);
  }
  maker.write(dir_ / "map");
  for (const bool staged : {false, true}) {
    SCOPED_TRACE(staged);
    std::vector<std::string> argv{"prlimit",    "--nofile=256:256", fs_mount(), "--log",
                                  dir_ / "log", "--threads",        "8"};
    if (staged) argv.insert(argv.end(), {"--stage", dir_ / "node"});
    argv.insert(argv.end(), {dir_ / "map", dir_ / "mnt"});
    fs::create_directories(dir_ / "mnt");
    run_checked(argv);
    mounted_.push_back(dir_ / "mnt");
    const auto stats = value_or_throw(read_stats_text(dir_ / "mnt"));
    const auto number = [&](const std::string& name) {
      return std::stoi(stats.substr(stats.find("\"" + name + "\":") + name.size() + 3));
    };
    EXPECT_LT(number("pinned"), 256);
    std::atomic<int> wrong = 0;
    std::atomic<std::size_t> most = 0;
    {
      std::vector<std::jthread> readers;
      for (int t = 0; t < 8; ++t)
        readers.emplace_back([&, t] {
          for (int i = t; i < kMany; i += 8) {
            const auto got = read_file(dir_ / ("mnt/v/f" + std::to_string(i)));
            wrong += !got || *got != "content " + std::to_string(i);
            if (i % 100 != 0) continue;
            const auto fds = "/proc/" + std::to_string(number("worker_pid")) + "/fd";
            std::size_t open = 0;
            for (auto it = fs::directory_iterator(fds); it != fs::directory_iterator(); ++it)
              ++open;
            most = std::max<std::size_t>(most, open);
          }
        });
    }
    EXPECT_EQ(wrong, 0) << log();
    EXPECT_LT(most, 256U);
    EXPECT_GT(most, 20U);
    EXPECT_EQ(run({fs_mount(), "-u", dir_ / "mnt"}).status, 0);
    EXPECT_TRUE(wait_until(10s, [&] { return !is_running(number("supervisor_pid")); }));
  }
}

}  // namespace
}  // namespace heddle::test
