// SPDX-License-Identifier: MIT
#pragma once

// What the tests of how mounts begin, change and end have in common.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "base/fd.hpp"
#include "tests/overlay/overlay_support.hpp"
#include "tests/support/build_elf.hpp"

namespace heddle::test {

/// A map of three files, and a directory to mount it on.
class Lifecycle : public ::testing::Test {
 protected:
  void SetUp() override {
    HEDDLE_NEEDS_FUSE();
    std::filesystem::create_directories(dir_ / "mnt");
    for (const char* name : {"a.so", "b.so", "c.so"})
      write_text_file(dir_ / (std::string("src/") + name), std::string("content of ") + name);
    MapMaker maker;
    maker.add_directory("v", dir_ / "src");
    map_ = maker.write(dir_ / "map");
  }
  std::string mnt() const { return dir_ / "mnt"; }
  RunResult fs_mount_run(std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), fs_mount());
    RunOptions options;
    options.deadline = std::chrono::seconds(20);
    return run(arguments, options);
  }
  /// Expects failure with one line that holds `words` (a hint may follow), and nothing mounted.
  void expect_refused(const RunResult& result, const std::string& words, int status = 3) {
    EXPECT_EQ(result.status, status) << result.err;
    EXPECT_THAT(result.err, ::testing::HasSubstr(words));
    EXPECT_EQ(result.out, "");
    std::string rest = result.err.substr(result.err.find('\n') + 1);
    EXPECT_TRUE(rest.empty() || rest.starts_with("hint: ")) << result.err;
    EXPECT_EQ(mounts_with(" " + mnt() + " "), 0U);
  }

  TestDir dir_;
  std::string map_;
};

}  // namespace heddle::test
