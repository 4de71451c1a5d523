// SPDX-License-Identifier: MIT
// fs-mount --stage: staged copies outlive their origins; full, damaged, small or closed directories
// cost only the copies.

#include <sys/mount.h>

#include <atomic>
#include <memory>
#include <nlohmann/json.hpp>

#include "base/content_hash.hpp"
#include "fuseovl/mount/stats_attribute.hpp"
#include "tests/overlay/mount_users.hpp"
#include "tests/overlay/origin_fs.hpp"

namespace heddle::test {
namespace {

inline constexpr int kFiles = 16;

/// A map of kFiles files of some 200 KB, and a directory to stage to.
class Staged : public ::testing::Test {
 protected:
  void SetUp() override {
    HEDDLE_NEEDS_FUSE();
    for (int i = 0; i < kFiles; ++i)
      write_text_file(dir_ / ("src/file" + std::to_string(i)), content(i));
    std::filesystem::create_directory(dir_ / "node");
    make_map(dir_ / "src");
  }
  void TearDown() override {
    for (const auto& directory : mounted_) ::umount2(directory.c_str(), MNT_DETACH);
  }
  void make_map(const std::string& directory) {
    MapMaker maker;
    for (int i = 0; i < kFiles; ++i) {
      const auto name = "file" + std::to_string(i);
      maker.add_name("v", name, directory + "/" + name);
    }
    maker.write(dir_ / "map");
  }
  static std::string content(int i) {
    return std::string(static_cast<std::size_t>(200'000 + 1000 * i), static_cast<char>('a' + i));
  }
  /// For a mount that stages to `directory`.
  std::vector<std::string> options(const std::string& directory = "node",
                                   std::vector<std::string> more = {}) const {
    std::vector<std::string> out{"--log", dir_ / "log", "--prefetch",
                                 "0",     "--stage",    dir_ / directory};
    out.insert(out.end(), more.begin(), more.end());
    return out;
  }
  void mount_tmpfs(const std::string& directory, const std::string& data, unsigned long flags = 0) {
    std::filesystem::create_directories(directory);
    ASSERT_EQ(::mount("tmpfs", directory.c_str(), "tmpfs", flags, data.c_str()), 0);
    mounted_.push_back(directory);
  }
  static Result<std::string> read(const Mount& m, int i) {
    return read_uncached(m / ("file" + std::to_string(i)));
  }
  static int right(const Mount& m) {
    int out = 0;
    for (int i = 0; i < kFiles; ++i) {
      const auto got = read(m, i);
      out += got && *got == content(i);
    }
    return out;
  }
  std::string objects() const {
    return dir_ / ("node/heddle-" + std::to_string(::geteuid()) + "/objects");
  }
  std::string copy_of(int i) const { return objects() + "/" + hash_bytes(content(i)).hex(); }
  std::string log() const { return read_file(dir_ / "log").value_or(""); }
  RunResult verify(const std::string& path) { return run({fs_mount(), "--verify", path}); }

  TestDir dir_;
  std::vector<std::string> mounted_;
};

TEST_F(Staged, staged_files_outlive_their_origin) {
  HEDDLE_NEEDS_RESEND();
  const OriginFs origin(dir_ / "src", dir_ / "far");
  make_map(dir_ / "far");
  const Mount m(dir_ / "map", dir_ / "mnt", options());
  ASSERT_EQ(m.wait_for_staging(), "done");
  EXPECT_EQ(m.stat_number("staged"), std::uint64_t{kFiles});
  origin.hang();
  EXPECT_EQ(right(m), kFiles);
  ::kill(m.worker(), SIGKILL);
  EXPECT_EQ(right(m), kFiles);
  origin.answer();
  origin.disconnect();
  EXPECT_EQ(right(m), kFiles);
  EXPECT_EQ(verify(m.path()).status, 0);
}

TEST_F(Staged, mount_serves_origins_while_staging_runs) {
  const OriginFs origin(dir_ / "src", dir_ / "far");
  make_map(dir_ / "far");
  origin.hang_reads();
  const Mount m(dir_ / "map", dir_ / "mnt", options());
  ASSERT_TRUE(wait_until(5s, [&] { return origin.held() > 0; }));
  EXPECT_EQ(m.stat_text("staging"), "running");
  origin.answer();
  EXPECT_EQ(right(m), kFiles);
  EXPECT_EQ(m.wait_for_staging(), "done");
}

TEST_F(Staged, parallel_mounts_read_each_origin_once) {
  const OriginFs origin(dir_ / "src", dir_ / "far");
  make_map(dir_ / "far");
  const auto before = origin.bytes_read();
  std::vector<std::unique_ptr<Mount>> mounts;
  for (int i = 0; i < 6; ++i)
    mounts.push_back(
        std::make_unique<Mount>(dir_ / "map", dir_ / ("mnt" + std::to_string(i)), options()));
  for (const auto& m : mounts) EXPECT_EQ(m->wait_for_staging(), "done");
  const auto after = origin.bytes_read();
  for (int i = 0; i < kFiles; ++i) {
    const auto name = "/file" + std::to_string(i);
    EXPECT_EQ(after.at(name) - before.at(name), content(i).size()) << name;
  }
  for (const auto& m : mounts) EXPECT_EQ(right(*m), kFiles);
  EXPECT_EQ(origin.bytes_read(), after);
}

TEST_F(Staged, file_changed_in_place_is_served_from_its_copy_or_answers_eio) {
  for (const bool keeps : {true, false}) {
    SCOPED_TRACE(keeps);
    make_map(dir_ / "src");
    const Mount m(dir_ / "map", dir_ / "mnt",
                  options("node", {"--on-drift", keeps ? "keep" : "eio"}));
    ASSERT_EQ(m.wait_for_staging(), "done");
    std::ofstream(dir_ / "src/file5", std::ios::app) << "more";
    const auto got = read(m, 5);
    if (keeps) {
      EXPECT_EQ(got.value(), content(5));
    } else {
      EXPECT_EQ(got.error().code(), EIO);
      EXPECT_EQ(m.stat_number("drift_files"), 1U);
    }
    EXPECT_EQ(read(m, 6).value(), content(6));
    write_text_file(dir_ / "src/file5", content(5));
  }
}

TEST_F(Staged, verify_names_each_changed_file) {
  const Mount m(dir_ / "map", dir_ / "mnt", {"--prefetch", "0"});
  const Mount staged(dir_ / "map", dir_ / "staged", options());
  ASSERT_EQ(staged.wait_for_staging(), "done");
  for (const std::string& whole : {m.path(), dir_ / "map"}) {
    const auto verified = verify(whole);
    EXPECT_EQ(verified.status, 0);
    EXPECT_EQ(verified.out, whole + ": 16 of 16 files are what the map says\n");
  }
  // Same size and time: the stamp matches.
  const auto path = dir_ / "src/file7";
  const auto time = fs::last_write_time(path);
  std::fstream(path) << "X";
  fs::last_write_time(path, time);
  ::unlink((dir_ / "src/file8").c_str());
  const auto files = verify(dir_ / "map");
  EXPECT_EQ(files.status, 1);
  EXPECT_THAT(files.out, HasSubstr(path + ": content changed\n"));
  EXPECT_THAT(files.out, HasSubstr("file8: missing\n"));
  EXPECT_THAT(files.out, HasSubstr(": 14 of 16 files are what the map says\n"));
  EXPECT_THAT(files.out, Not(HasSubstr("file9")));
  ::posix_fadvise(value_or_throw(open_file(m / "file7", O_RDONLY)).get(), 0, 0,
                  POSIX_FADV_DONTNEED);
  const auto served = verify(m.path());
  EXPECT_EQ(served.status, 1) << served.out;
  EXPECT_THAT(served.out, HasSubstr("/v/file7"));
  EXPECT_THAT(served.out, Not(HasSubstr("file8"))) << "it is pinned";
  EXPECT_EQ(served.err, "");
  const auto right = verify(staged.path());
  EXPECT_EQ(right.status, 0) << right.out;
  EXPECT_THAT(right.err, HasSubstr("serves what the map says: 1 file has changed"));
  EXPECT_EQ(verify(dir_ / "src").status, 3);
  EXPECT_EQ(verify(dir_ / "none").status, 3);
}

TEST_F(Staged, damaged_copies_are_never_served) {
  {
    const Mount m(dir_ / "map", dir_ / "mnt", options());
    ASSERT_EQ(m.wait_for_staging(), "done");
  }
  write_text_file(copy_of(0), content(0).substr(0, 4096));
  write_text_file(copy_of(1), std::string(content(1).size(), 'Z'));
  write_text_file(copy_of(2), "");
  const Mount m(dir_ / "map", dir_ / "mnt", options());
  EXPECT_EQ(right(m), kFiles);
  EXPECT_EQ(m.wait_for_staging(), "done");
  EXPECT_EQ(right(m), kFiles);
  EXPECT_EQ(read_file(copy_of(1)).value(), content(1));
  // Damaged while served: its origin replaces it.
  std::fstream(copy_of(3)) << "changed";
  fs::remove(copy_of(4));
  EXPECT_EQ(right(m), kFiles);
  EXPECT_THAT(log(), HasSubstr("a staged copy is no longer used: has changed"));
}

TEST_F(Staged, unusable_staging_directory_costs_only_the_copies) {
  mount_tmpfs(dir_ / "readonly", "", MS_RDONLY);
  mount_tmpfs(dir_ / "noexec", "", MS_NOEXEC | MS_NOSUID | MS_NODEV);
  mount_tmpfs(dir_ / "full", "size=64k");
  mount_tmpfs(dir_ / "half", "size=1m");
  fs::create_directory(dir_ / "others");
  ::chown((dir_ / "others").c_str(), 12345, 12345);
  write_text_file(dir_ / "file", "");
  int n = 0;
  for (const char* name :
       {"noexec", "readonly", "full", "half", "others", "file", "missing", "none/below"}) {
    SCOPED_TRACE(name);
    fs::remove(dir_ / "log");
    const Mount m(dir_ / "map", dir_ / ("mnt" + std::to_string(n++)), options(name));
    const auto state = m.wait_for_staging();
    EXPECT_EQ(state == "done", name == "noexec"sv || name == "missing"sv || name == "none/below"sv)
        << state;
    EXPECT_EQ(right(m), kFiles);
    if (state == "incomplete") {
      EXPECT_THAT(log(), HasSubstr("not everything is staged"));
    }
  }
  fs::create_directory(dir_ / "mnt-said");
  const auto said =
      run({fs_mount(), "--stage", dir_ / "readonly/none", dir_ / "map", dir_ / "mnt-said"});
  mounted_.push_back(dir_ / "mnt-said");
  EXPECT_EQ(said.status, 0);
  EXPECT_THAT(said.err, HasSubstr("none: cannot use for staging: Read-only file system"));
}

TEST_F(Staged, budget_limits_one_mount) {
  const Mount m(dir_ / "map", dir_ / "mnt", options("node", {"--budget", "1M"}));
  EXPECT_EQ(m.wait_for_staging(), "incomplete");
  EXPECT_EQ(m.stat_number("staged"), 5U);
  EXPECT_LE(m.stat_number("staged_bytes"), 1U << 20);
  EXPECT_EQ(right(m), kFiles);
  EXPECT_THAT(log(), HasSubstr("the budget"));
}

TEST_F(Staged, budget_limits_parallel_mounts_together) {
  constexpr int kMounts = 4;
  constexpr std::uintmax_t kBudget = 3U << 20;  // less than one map's files
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
  for (const auto& m : mounts) EXPECT_EQ(m->wait_for_staging(), "incomplete");
  looking = false;
  looker.join();
  EXPECT_LE(most, kBudget);
  EXPECT_GT(most, kBudget / 2);
}

TEST_F(Staged, daemon_killed_at_any_moment_leaves_only_whole_copies) {
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
  EXPECT_EQ(m.wait_for_staging(), "done");
  EXPECT_EQ(right(m), kFiles);
}

TEST_F(Staged, many_objects_are_served_with_256_descriptors) {
  const int many = std::getenv("HEDDLE_TEST_SECONDS") ? 10'000 : 2'000;
  MapMaker maker;
  fs::create_directories(dir_ / "many");
  for (int i = 0; i < many; ++i) {
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
    const auto stats = nlohmann::json::parse(value_or_throw(read_stats_text(dir_ / "mnt")));
    const auto number = [&](const char* name) { return stats.at(name).get<int>(); };
    EXPECT_LT(number("pinned"), 256);
    std::atomic<int> wrong = 0;
    std::atomic<std::size_t> most = 0;
    {
      std::vector<std::jthread> readers;
      for (int t = 0; t < 8; ++t)
        readers.emplace_back([&, t] {
          for (int i = t; i < many; i += 8) {
            const auto got = read_file(dir_ / ("mnt/v/f" + std::to_string(i)));
            wrong += !got || *got != "content " + std::to_string(i);
            if (i % 100 != 0) continue;
            most = std::max<std::size_t>(most, footprint(number("worker_pid")).fds);
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
