// SPDX-License-Identifier: MIT
#include "fuseovl/files/local_files.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <filesystem>

#include "fuseovl/files/own_disk.hpp"
#include "tests/support/build_elf.hpp"
#include "tests/support/fuse_kernel.hpp"
#include "tests/support/test_dir.hpp"

namespace heddle::test {
namespace {

namespace fs = std::filesystem;

MountEntry mount(const std::string& point, const std::string& type, const std::string& source) {
  MountEntry out;
  out.point = point;
  out.type = type;
  out.source = source;
  return out;
}

class LocalFilesTest : public ::testing::Test {
 protected:
  /// As if the folder that holds `dir_` were of this type, and nothing else mounted above it.
  int open_as(const std::string& type, const std::string& source, const std::string& path) {
    auto mounts = std::vector{mount("/", type, source), mount("/proc", "proc", "proc")};
    mounts.insert(mounts.end(), more_.begin(), more_.end());
    LocalFiles files(mounts, [](const std::string& disk) { return disk.starts_with("/dev/sd"); });
    const auto file = files.open(path, O_RDONLY);
    return file ? 0 : file.error().code();
  }
  int open(const std::string& path) { return open_as("ext4", "/dev/sda1", path); }
  void SetUp() override {
    // What the machine itself has mounted where the tests' folder is would be crossed as well.
    const auto mounts = list_mounts();
    ASSERT_TRUE(mounts);
    const auto* own = mount_of(dir_.path(), *mounts);
    ASSERT_TRUE(own);
    if (own->point != "/") more_.push_back(mount(own->point, "ext4", "/dev/sda2"));
    write_text_file(dir_ / "file", "text");
  }

  TestDir dir_;
  std::vector<MountEntry> more_;
};

TEST_F(LocalFilesTest, a_file_of_a_disk_is_opened_by_name_and_by_links_on_that_disk) {
  HEDDLE_NEEDS_OPENAT2();
  fs::create_directories(dir_ / "folder");
  fs::create_symlink("../file", dir_ / "folder/relative");
  fs::create_directory_symlink("folder", dir_ / "by");
  EXPECT_EQ(open(dir_ / "file"), 0);
  EXPECT_EQ(open(dir_ / "folder/relative"), 0);
  EXPECT_EQ(open(dir_ / "by/relative"), 0);
  EXPECT_EQ(open(dir_ / "missing"), ENOENT);
  EXPECT_EQ(open_as("tmpfs", "tmpfs", dir_ / "file"), 0);
}

TEST_F(LocalFilesTest, a_link_that_begins_with_a_slash_stays_on_the_root) {
  HEDDLE_NEEDS_OPENAT2();
  if (!more_.empty()) GTEST_SKIP() << "the tests' folder is on a file system of its own";
  fs::create_symlink(dir_ / "file", dir_ / "absolute");
  EXPECT_EQ(open(dir_ / "absolute"), 0);
}

TEST_F(LocalFilesTest, what_may_be_asked_of_others_is_not_opened) {
  for (const char* type : {"nfs4", "lustre", "fuse.heddle", "overlay", "squashfs", "autofs"})
    EXPECT_EQ(open_as(type, "server:/x", dir_ / "file"), EXDEV) << type;
  for (const char* device : {"/dev/loop0", "none"})
    EXPECT_EQ(open_as("ext4", device, dir_ / "file"), EXDEV) << device;
  EXPECT_EQ(open("file"), EXDEV) << "of nobody knows which folder";
}

TEST_F(LocalFilesTest, a_link_to_another_mount_is_not_followed) {
  fs::create_symlink("/proc/version", dir_ / "file-there");
  fs::create_directory_symlink("/proc", dir_ / "folder-there");
  EXPECT_EQ(open(dir_ / "file-there"), EXDEV);
  EXPECT_EQ(open(dir_ / "folder-there/version"), EXDEV);
  EXPECT_EQ(open("/proc/version"), EXDEV);
}

TEST_F(LocalFilesTest, a_local_mount_below_another_is_reached_over_that) {
  HEDDLE_NEEDS_OPENAT2();
  more_.push_back(mount(dir_ / "disk", "ext4", "/dev/sdb1"));
  write_text_file(dir_ / "disk/file", "text");
  EXPECT_EQ(open(dir_ / "disk/file"), 0);
  more_.push_back(mount(dir_.path(), "nfs4", "server:/x"));
  EXPECT_EQ(open(dir_ / "disk/file"), EXDEV);
  EXPECT_EQ(open(dir_ / "file"), EXDEV);
}

TEST_F(LocalFilesTest, the_last_of_two_mounts_on_one_point_counts) {
  more_.push_back(mount(dir_.path(), "ext4", "/dev/sdb1"));
  more_.push_back(mount(dir_.path(), "nfs4", "server:/x"));
  EXPECT_EQ(open(dir_ / "file"), EXDEV);
}

TEST_F(LocalFilesTest, no_link_is_followed_where_autofs_may_be_asked) {
  HEDDLE_NEEDS_OPENAT2();
  more_.push_back(mount("/apps", "autofs", "/etc/auto.apps"));
  fs::create_symlink("file", dir_ / "link");
  EXPECT_EQ(open(dir_ / "file"), 0);
  EXPECT_EQ(open(dir_ / "link"), EXDEV);
  more_.back().point = "/proc/sys/fs/binfmt_misc";
  EXPECT_EQ(open(dir_ / "link"), 0);
}

/// A tree as /sys is.
class OwnDisk : public ::testing::Test {
 protected:
  void add(const std::string& number, const std::string& device) {
    fs::create_directories(dir_ / ("devices/" + device));
    fs::create_directories(dir_ / "dev/block");
    fs::create_symlink("../../devices/" + device, dir_ / ("dev/block/" + number));
  }
  void add_part(const std::string& device, const std::string& part) {
    const auto parts = dir_ / ("devices/" + device + "/slaves");
    fs::create_directories(parts);
    fs::create_symlink(dir_ / ("devices/" + part),
                       parts + "/" + fs::path(part).filename().string());
  }
  bool is_own(unsigned number) { return is_own_disk(::makedev(8, number), dir_.path()); }
  TestDir dir_;
};

TEST_F(OwnDisk, is_one_that_the_kernel_reaches_over_no_network) {
  add("8:1", "pci0000:00/0000:00:1f.2/ata1/host0/target0:0:0/0:0:0:0/block/sda/sda1");
  add("8:2", "platform/host3/session1/target3:0:0/3:0:0:1/block/sdb");
  add("8:3", "pci0000:00/0000:05:00.0/host1/rport-1:0-2/target1:0:0/1:0:0:0/block/sdc");
  add("8:4", "virtual/nvme-fabrics/ctl/nvme0/nvme0n1");
  add("8:5", "virtual/block/loop0");
  add("8:6", "virtual/block/nbd0");
  EXPECT_TRUE(is_own(1));
  for (const unsigned number : {2, 3, 4, 5, 6, 7}) EXPECT_FALSE(is_own(number)) << number;
}

TEST_F(OwnDisk, is_made_of_own_disks) {
  add("8:1", "pci0000:00/block/sda/sda1");
  add("8:2", "virtual/block/nbd0");
  add("8:10", "virtual/block/dm-0");
  add_part("virtual/block/dm-0", "pci0000:00/block/sda/sda1");
  add("8:11", "virtual/block/md0");
  add_part("virtual/block/md0", "virtual/block/dm-0");
  add("8:12", "virtual/block/dm-1");
  add_part("virtual/block/dm-1", "pci0000:00/block/sda/sda1");
  add_part("virtual/block/dm-1", "virtual/block/nbd0");
  add("8:13", "virtual/block/dm-2");
  add("8:14", "virtual/block/dm-3");
  add_part("virtual/block/dm-3", "virtual/block/dm-3");
  EXPECT_TRUE(is_own(10));
  EXPECT_TRUE(is_own(11));
  EXPECT_FALSE(is_own(12)) << "half of it is another node's";
  EXPECT_FALSE(is_own(13)) << "of nothing";
  EXPECT_FALSE(is_own(14)) << "of itself";
}

TEST(MountOf, is_the_longest_folder_not_the_longest_text) {
  const std::vector mounts{mount("/", "ext4", "/dev/sda"), mount("/data", "nfs4", "s:/d"),
                           mount("/data/x y", "tmpfs", "tmpfs")};
  const auto point = [&](const char* path) { return mount_of(path, mounts)->point; };
  EXPECT_EQ(point("/data/file"), "/data");
  EXPECT_EQ(point("/data"), "/data");
  EXPECT_EQ(point("/database/file"), "/");
  EXPECT_EQ(point("/data/x y/file"), "/data/x y");
  EXPECT_EQ(mount_of("relative", mounts)->point, "/");
}

}  // namespace
}  // namespace heddle::test
