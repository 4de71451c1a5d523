// SPDX-License-Identifier: MIT
// fs-mount --reload of a mount that stages (--stage, --budget).

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <filesystem>

#include "base/content_hash.hpp"
#include "base/fd.hpp"
#include "tests/overlay/mount_users.hpp"
#include "tests/overlay/origin_fs.hpp"
#include "tests/overlay/overlay_support.hpp"

namespace heddle::test {
namespace {

namespace fs = std::filesystem;
using namespace std::chrono_literals;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr int kFiles = 8;
constexpr std::size_t kSize = 200'000;

class ReloadStaged : public ::testing::Test {
 protected:
  void SetUp() override {
    HEDDLE_NEEDS_FUSE();
    HEDDLE_NEEDS_EPOCHS();
    fs::create_directory(dir_ / "node");
    for (const char c : {'a', 'b'})
      for (int i = 0; i < kFiles; ++i)
        write_text_file(dir_ / "src" + "/" + c + std::to_string(i), content(c, i));
    origin_.emplace(dir_ / "src", dir_ / "far");
    for (const char c : {'a', 'b'}) {
      MapMaker maker;
      for (int i = 0; i < kFiles; ++i)
        maker.add_name("v", name(i), *origin_ / (c + std::to_string(i)));
      maker.write(map(c));
    }
  }
  std::string map(char c) const { return dir_ / std::string("map-") + c; }
  static std::string name(int i) { return "file" + std::to_string(i); }
  static std::string content(char c, int i) { return std::string(kSize, c) + std::to_string(i); }
  void mount(char c, std::vector<std::string> more = {"--origin-timeout", "1"}) {
    std::vector<std::string> options{"--log", dir_ / "log", "--prefetch",
                                     "0",     "--stage",    dir_ / "node"};
    options.insert(options.end(), more.begin(), more.end());
    mount_.emplace(map(c), dir_ / "mnt", options);
  }
  static std::string staging(const Mount& m) {
    std::string state;
    (void)wait_until(20s, [&] { return (state = m.stat_text("staging")) != "running"; });
    return state;
  }
  /// The mount alone, or to another map: then it returns when the names are the new ones for all.
  RunResult reload(const std::string& map = {}) const {
    std::vector<std::string> argv{fs_mount(), "--reload"};
    if (!map.empty()) argv.push_back(map);
    argv.push_back(mount_->path());
    return run(argv);
  }
  static std::string read_again(const Fd& file) {
    ::posix_fadvise(file.get(), 0, 0, POSIX_FADV_DONTNEED);
    ::lseek(file.get(), 0, SEEK_SET);
    return read_all(file.get(), "held").value_or("an error");
  }
  int right(char c) const {
    int out = 0;
    for (int i = 0; i < kFiles; ++i) {
      const auto got = read_uncached(*mount_ / name(i));
      out += got && *got == content(c, i);
    }
    return out;
  }
  std::string copy_of(char c, int i) const {
    return dir_ / "node/heddle-" + std::to_string(::geteuid()) + "/objects/" +
           hash_bytes(content(c, i)).hex();
  }
  std::uintmax_t copied_bytes() const {
    std::uintmax_t sum = 0;
    std::error_code gone;
    for (const auto& entry : fs::directory_iterator(fs::path(copy_of('a', 0)).parent_path())) {
      const auto size = entry.file_size(gone);
      sum += gone ? 0 : size;
    }
    return sum;
  }
  std::string log() const { return read_file(dir_ / "log").value_or(""); }

  TestDir dir_;
  std::optional<OriginFs> origin_;
  std::optional<Mount> mount_;
};

TEST_F(ReloadStaged, another_worker_reads_the_copies_whatever_becomes_of_the_origin) {
  mount('a');
  ASSERT_EQ(staging(*mount_), "done");
  origin_->hang();
  const auto done = reload();
  ASSERT_EQ(done.status, 0) << done.err << log();
  EXPECT_EQ(right('a'), kFiles);
  EXPECT_EQ(mount_->stat_number("staged"), std::uint64_t{kFiles});
  EXPECT_EQ(staging(*mount_), "done");
  origin_->answer();
  origin_->disconnect();
  ASSERT_EQ(reload(map('a')).status, 0) << log();
  EXPECT_EQ(right('a'), kFiles);
}

TEST_F(ReloadStaged, what_is_in_use_of_the_old_map_is_read_from_its_copy) {
  mount('a');
  ASSERT_EQ(staging(*mount_), "done");
  const auto held = value_or_throw(open_file(*mount_ / name(1), O_RDONLY));
  auto mapped = value_or_throw(open_file(*mount_ / name(2), O_RDONLY));
  const auto* bytes =
      static_cast<const char*>(::mmap(nullptr, kSize, PROT_READ, MAP_PRIVATE, mapped.get(), 0));
  ASSERT_NE(bytes, MAP_FAILED);
  mapped.reset();
  ASSERT_EQ(reload(map('b')).status, 0) << log();
  ASSERT_EQ(staging(*mount_), "done");
  origin_->disconnect();
  EXPECT_EQ(read_again(held), content('a', 1));
  EXPECT_EQ(std::string_view(bytes, kSize), std::string(kSize, 'a'));
  EXPECT_EQ(right('b'), kFiles);
  // The same once more with another worker, and another map in between.
  ASSERT_EQ(reload().status, 0) << log();
  EXPECT_EQ(read_again(held), content('a', 1));
  EXPECT_EQ(right('b'), kFiles);
  ::munmap(const_cast<char*>(bytes), kSize);
}

TEST_F(ReloadStaged, copies_of_the_old_map_stay_until_nobody_needs_them_and_count) {
  // For one map and a half.
  constexpr std::uintmax_t kBudget = 3 * kFiles * kSize / 2;
  mount('a', {"--budget", std::to_string(kBudget)});
  ASSERT_EQ(staging(*mount_), "done");
  auto held = value_or_throw(open_file(*mount_ / name(3), O_RDONLY));
  ASSERT_EQ(reload(map('b')).status, 0) << log();
  EXPECT_TRUE(fs::exists(copy_of('a', 3)));
  EXPECT_THAT(log(), HasSubstr("bytes is used up")) << "both maps do not fit";
  EXPECT_LE(copied_bytes(), kBudget);
  EXPECT_EQ(right('b'), kFiles);
  // The kernel forgets what nobody has: there is room for all but what is held.
  EXPECT_TRUE(wait_until(20s, [&] { return mount_->stat_text("staging") == "done"; }))
      << mount_->stat_number("staged") << log();
  EXPECT_EQ(mount_->stat_number("staged"), std::uint64_t{kFiles});
  EXPECT_LE(copied_bytes(), kBudget);
  // Another mount takes what room it can get.
  {
    const Mount other(map('b'), dir_ / "other",
                      {"--prefetch", "0", "--stage", dir_ / "node", "--budget", "1"});
    EXPECT_EQ(staging(other), "done");
    EXPECT_TRUE(fs::exists(copy_of('a', 3)));
    EXPECT_FALSE(fs::exists(copy_of('a', 4)));
  }
  origin_->disconnect();
  EXPECT_EQ(read_again(held), content('a', 3));
  held.reset();
  EXPECT_TRUE(wait_until(20s, [&] { return mount_->stat_number("retired") == 0; }));
  {
    const Mount other(
        map('b'), dir_ / "other",
        {"--prefetch", "0", "--on-drift", "warn", "--stage", dir_ / "node", "--budget", "1"});
    EXPECT_TRUE(wait_until(10s, [&] { return !fs::exists(copy_of('a', 3)); }));
    EXPECT_TRUE(fs::exists(copy_of('b', 3)));
  }
}

TEST_F(ReloadStaged, one_that_comes_while_files_are_being_copied_leaves_one_process_at_it) {
  origin_->hang_reads();
  mount('a', {"--origin-timeout", "30"});
  ASSERT_TRUE(wait_until(5s, [&] { return origin_->held() > 0; }));
  EXPECT_EQ(children_of(mount_->pid()).size(), 2U);
  ASSERT_EQ(reload().status, 0) << log();
  ASSERT_EQ(reload().status, 0) << log();
  origin_->answer();
  EXPECT_EQ(staging(*mount_), "done");
  EXPECT_EQ(right('a'), kFiles);
  EXPECT_TRUE(
      wait_until(5s, [&] { return children_of(mount_->pid()) == std::vector{mount_->worker()}; }));
}

TEST_F(ReloadStaged, the_options_of_a_mount_stay_and_others_are_refused) {
  mount('a');
  const auto refused = run({fs_mount(), "--reload", "--budget", "1G", mount_->path()});
  EXPECT_EQ(refused.status, 2);
  EXPECT_THAT(refused.err, HasSubstr("--budget does not go with --reload"));
}

}  // namespace
}  // namespace heddle::test
