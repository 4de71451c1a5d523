// SPDX-License-Identifier: MIT
#pragma once

// What the tests of fs-mount --stage have in common.

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mount.h>
#include <unistd.h>

#include <filesystem>

#include "base/content_hash.hpp"
#include "base/fd.hpp"
#include "tests/overlay/overlay_support.hpp"
#include "tests/support/build_elf.hpp"

namespace heddle::test {

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
  static std::string staging(const Mount& m) {
    std::string state;
    (void)wait_until(std::chrono::seconds(20),
                     [&] { return (state = m.stat_text("staging")) != "running"; });
    return state;
  }
  static Result<std::string> read(const Mount& m, int i) {
    auto file = open_file(m / ("file" + std::to_string(i)), O_RDONLY);
    if (!file) return fail(file.error());
    ::posix_fadvise(file->get(), 0, 0, POSIX_FADV_DONTNEED);
    return read_all(file->get(), "file");
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

}  // namespace heddle::test
