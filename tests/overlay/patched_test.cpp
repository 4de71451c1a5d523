// SPDX-License-Identifier: MIT
// Files of a container's image that are served with a few bytes of ours in place of their own:
// however they are read, whoever serves them, and never where they are not the file that the bytes
// were made for.

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>

#include "base/content_hash.hpp"
#include "base/fd.hpp"
#include "base/mapped_file.hpp"
#include "resolver/map/map_writer.hpp"
#include "tests/overlay/overlay_support.hpp"
#include "tests/support/build_elf.hpp"

namespace heddle::test {
namespace {

namespace fs = std::filesystem;
using namespace std::chrono_literals;
using ::testing::HasSubstr;

constexpr std::size_t kSize = 300'000;

class Patched : public ::testing::Test {
 protected:
  void SetUp() override {
    HEDDLE_NEEDS_FUSE();
    for (std::size_t i = 0; i < kSize; ++i) plain_ += static_cast<char>('a' + i % 26);
    write_text_file(dir_ / "root/app/solver", plain_, 0755);
    served_ = plain_;
    // Within a page, over the border of two, over that of two requests, and at both ends.
    for (const std::size_t offset : {0UL, 100UL, 4093UL, 131'069UL, kSize - 7}) {
      patches_.push_back({offset, plain_.substr(offset, 7), "PATCHED"});
      served_.replace(offset, 7, "PATCHED");
    }
    write_map();
  }
  void write_map() const {
    MapMaker maker;
    maker.add_name("v", ".image/app/solver", dir_ / "root/app/solver");
    auto content = maker.content();
    auto& object = content.objects.at(0);
    object.path = "/app/solver";
    object.in_image = true;
    object.owner = 12;
    object.group = 34;
    object.patches = patches_;
    content.paths.clear();
    value_or_throw(heddle::write_map(content, dir_ / "map"));
  }
  std::vector<std::string> options(std::vector<std::string> more = {}) const {
    more.insert(more.end(), {"--image", dir_ / "root"});
    return more;
  }
  static std::string name_in(const Mount& mount) { return mount / ".image/app/solver"; }
  RunResult try_to_mount(std::vector<std::string> options) const {
    fs::create_directories(dir_ / "mnt");
    options.insert(options.begin(), fs_mount());
    options.insert(options.end(), {dir_ / "map", dir_ / "mnt"});
    return run(options);
  }

  TestDir dir_;
  std::string plain_, served_;
  std::vector<BytePatch> patches_;
};

TEST_F(Patched, every_way_to_read_gives_the_patched_bytes_and_the_image_keeps_its_own) {
  fs::create_directory(dir_ / "node");
  for (const auto& more : {std::vector<std::string>{"--prefetch", "0"},
                           {"--prefetch", "64M"},
                           {"--stage", dir_ / "node"}}) {
    const Mount mount(dir_ / "map", dir_ / "mnt", options(more));
    const auto wanted = more[0] == "--stage" ? "done" : "none";
    ASSERT_TRUE(wait_until(20s, [&] { return mount.stat_text("staging") == wanted; }));
    const auto file = value_or_throw(open_file(name_in(mount), O_RDONLY));
    for (const std::size_t at : {4090UL, 4094UL, 4096UL, 131'070UL, 131'072UL, kSize - 3, 95UL}) {
      std::string bytes(30, '\0');
      const auto n = ::pread(file.get(), bytes.data(), bytes.size(), static_cast<off_t>(at));
      EXPECT_EQ(bytes.substr(0, static_cast<std::size_t>(n)), served_.substr(at, 30)) << at;
    }
    EXPECT_TRUE(value_or_throw(read_file(name_in(mount))) == served_);
    EXPECT_TRUE(value_or_throw(MappedFile::open(name_in(mount))).bytes() == served_);
    struct stat status {};
    ASSERT_EQ(::stat(name_in(mount).c_str(), &status), 0);
    EXPECT_EQ(status.st_uid, 12U) << "the container's number, not this namespace's";
    EXPECT_EQ(status.st_gid, 34U);
    EXPECT_EQ(status.st_size, static_cast<off_t>(kSize));
    // What is compared is what the map says of the file, and that the bytes are in place.
    const auto verified = run({fs_mount(), "--verify", mount.path()});
    EXPECT_EQ(verified.status, 0) << verified.out << verified.err;
  }
  EXPECT_TRUE(value_or_throw(read_file(dir_ / "root/app/solver")) == plain_);
}

TEST_F(Patched, who_serves_next_has_the_patches_too) {
  HEDDLE_NEEDS_RESEND();
  const Mount mount(dir_ / "map", dir_ / "mnt", options({"--prefetch", "0"}));
  const auto read = [&] {
    const auto file = value_or_throw(open_file(name_in(mount), O_RDONLY));
    (void)::posix_fadvise(file.get(), 0, 0, POSIX_FADV_DONTNEED);
    return value_or_throw(read_file(name_in(mount)));
  };
  EXPECT_TRUE(read() == served_);
  const int worker = mount.worker();
  ASSERT_EQ(::kill(worker, SIGKILL), 0);
  EXPECT_TRUE(read() == served_);
  const auto reloaded = mount.reload({}, options({"--prefetch", "0"}));
  EXPECT_EQ(reloaded.status, 0) << reloaded.err;
  EXPECT_TRUE(read() == served_);
}

TEST_F(Patched, a_file_that_is_not_the_one_they_were_made_for_is_not_served) {
  struct stat before {};
  const auto path = dir_ / "root/app/solver";
  ASSERT_EQ(::stat(path.c_str(), &before), 0);
  // Same size and time, other bytes where ours would go: as a hostile image could be.
  auto other = plain_;
  other[102] = 'X';
  write_text_file(path, other, 0755);
  const timespec times[] = {before.st_mtim, before.st_mtim};
  ASSERT_EQ(::utimensat(AT_FDCWD, path.c_str(), times, 0), 0);
  const auto refused = try_to_mount(options());
  EXPECT_EQ(refused.status, 3);
  EXPECT_THAT(refused.err, HasSubstr("content changed"));
  const Mount mount(dir_ / "map", dir_ / "mnt", options({"--on-drift", "warn"}));
  EXPECT_FALSE(fs::exists(name_in(mount)));
}

TEST_F(Patched, without_its_image_the_map_is_not_mounted) {
  const auto refused = try_to_mount({});
  EXPECT_EQ(refused.status, 3);
  EXPECT_THAT(refused.err, HasSubstr("--image"));
  const auto gone = try_to_mount({"--image", dir_ / "none"});
  EXPECT_EQ(gone.status, 3);
  EXPECT_THAT(gone.err, HasSubstr("none"));
}

TEST_F(Patched, links_of_the_image_lead_nowhere_outside_it) {
  fs::rename(dir_ / "root/app", dir_ / "app");
  fs::create_symlink(dir_ / "app", dir_ / "root/app");
  const auto refused = try_to_mount(options());
  EXPECT_EQ(refused.status, 3);
  EXPECT_THAT(refused.err, HasSubstr("/app/solver"));
  // The same link, followed inside.
  fs::create_directories(dir_ / "root" / fs::path(dir_ / "x").relative_path().parent_path());
  fs::rename(dir_ / "app", dir_ / "root" / fs::path(dir_ / "app").relative_path());
  const Mount mount(dir_ / "map", dir_ / "mnt", options());
  EXPECT_TRUE(value_or_throw(read_file(name_in(mount))) == served_);
}

}  // namespace
}  // namespace heddle::test
