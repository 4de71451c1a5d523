// SPDX-License-Identifier: MIT
#pragma once

// What the tests of fs-mount --reload have in common.

#include <gtest/gtest.h>

#include <filesystem>

#include "base/fd.hpp"
#include "fuseovl/mount/kernel_mount.hpp"
#include "tests/overlay/mount_users.hpp"
#include "tests/support/build_elf.hpp"

namespace heddle::test {

using Strings = std::vector<std::string>;

inline std::string text_of(const std::string& path) { return value_or_throw(read_file(path)); }

/// Whether --reload takes the old mount off. Before Linux 6.5 it stays beneath the new one, with
/// its daemon, until fs-mount -u.
inline bool takes_old_off() { return value_or_throw(mount_stacking()) == Stacking::beneath; }

/// The mounts at `mount` after so many exchanges are as many as there should be.
inline void expect_mounts(const Mount& mount, std::size_t exchanges) {
  EXPECT_EQ(mounts_with(" " + mount.path() + " "), takes_old_off() ? 1 : 1 + exchanges);
}

/// `daemon`, which serves nobody but the mount that others have taken the place of, ends: at once,
/// or when all that is stacked is unmounted.
inline void expect_end_of_old(int daemon, const Mount& mount) {
  if (!takes_old_off()) {
    EXPECT_TRUE(is_running(daemon));
    EXPECT_EQ(mount.unmount().status, 0);
    EXPECT_EQ(mounts_with(" " + mount.path() + " "), 0U);
  }
  EXPECT_TRUE(wait_until(std::chrono::seconds(10), [&] { return !is_running(daemon); }));
}

/// Two maps of a few files: one is as it is in both, one is changed, others come and go.
class Reload : public ::testing::Test {
 protected:
  void SetUp() override {
    HEDDLE_NEEDS_FUSE();
    for (const char* name : {"same", "changed", "gone", "plugins/p"})
      write_text_file(dir_ / std::string("one/") + name, std::string("one ") + name + "\n");
    std::filesystem::create_directories(dir_ / "two/plugins");
    for (const char* name : {"changed", "new", "plugins/q"})
      write_text_file(dir_ / std::string("two/") + name, std::string("two ") + name + "\n");
    MapMaker one, two;
    one.add_directory("v", dir_ / "one");
    one.write(dir_ / "map1");
    two.add_directory("v", dir_ / "two");
    two.add_name("v", "same", dir_ / "one/same");
    two.write(dir_ / "map2");
  }

  /// A map of 300 KB files of one character.
  std::string write_big_map(char c) {
    const std::string directory = dir_ / std::string("big-") + c;
    MapMaker maker;
    for (int i = 0; i < 20; ++i)
      write_text_file(directory + "/file" + std::to_string(i), std::string(300000, c));
    maker.add_directory("v", directory);
    return maker.write(dir_ / std::string("map-") + c);
  }

  RunResult reload(const Strings& arguments) const {
    Strings argv{fs_mount(), "--reload"};
    argv.insert(argv.end(), arguments.begin(), arguments.end());
    return run(argv);
  }
  std::string log() const { return read_file(dir_ / "log").value_or(""); }

  TestDir dir_;
};

}  // namespace heddle::test
