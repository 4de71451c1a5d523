// SPDX-License-Identifier: MIT
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "tests/support/run.hpp"
#include "tests/support/test_dir.hpp"

namespace heddle::test {

/// Runs fs-gen as a user like those of a cluster, in a world made by in_world.cpp: a
/// /dev/fuse that is open to all or absent, system calls that are forbidden. Everything
/// lies below one directory that this user can read: home, caches and temporary files too.
class UserWorld {
 public:
  /// Throws Error when programs are not installed in $HEDDLE_STAGE.
  UserWorld();

  struct World {
    unsigned uid = 1500;
    std::string fuse = "open";           ///< or "absent"
    std::vector<std::string> forbidden;  ///< system calls
    std::string mtab = "open";           ///< or "absent": /etc/mtab
  };
  /// `sh -c script` there; $FS_GEN and $OUT (a directory) are set.
  RunResult sh(const World& world, const std::string& script) const;
  RunResult sh(const std::string& script) const { return sh(World{}, script); }
  nlohmann::json report(const std::string& name) const;  ///< of $OUT
  std::string out(const std::string& name) const;        ///< text of a file in $OUT
  /// What is left in the directory for temporary files.
  std::vector<std::string> left() const;
  /// Processes of ours that still run: their directory is in their command line or environment.
  std::vector<int> processes() const;

  const TestDir& dir() const { return dir_; }

 private:
  TestDir dir_;
  std::string fs_gen_;
};

/// A user's world; what a run leaves there fails the case.
class UserWorldFixture : public ::testing::Test {
 protected:
  void SetUp() override {
    if (staged_program("fs-gen").empty()) HEDDLE_SKIP("fs-gen is not installed in $HEDDLE_STAGE");
    if (::geteuid() != 0) HEDDLE_SKIP("making a user's world needs root");
    world_.emplace();
  }
  void TearDown() override {
    if (!world_) return;
    EXPECT_TRUE(wait_until(std::chrono::seconds(10),
                           [&] { return world_->left().empty() && world_->processes().empty(); }))
        << (world_->left().empty() ? "a process" : world_->left()[0]) << " is left";
  }

  std::optional<UserWorld> world_;
};

}  // namespace heddle::test
