// SPDX-License-Identifier: MIT
#pragma once

#include <nlohmann/json_fwd.hpp>

#include "tests/support/prelude.hpp"

namespace heddle::test {

/// Runs fs-gen as a cluster's user in a world of in_world.cpp: /dev/fuse is open to all or absent,
/// system calls are forbidden. Home, caches and temporary files are in one directory that the user
/// can read.
class UserWorld {
 public:
  /// Throws Error when fs-gen is not in $HEDDLE_STAGE.
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
  /// What TMPDIR holds.
  std::vector<std::string> left() const;
  /// Processes with this TMPDIR in their environment that still run.
  std::vector<int> processes() const;

  const TestDir& dir() const { return dir_; }

 private:
  TestDir dir_;
  std::string fs_gen_;
};

/// A user's world; files or processes that a run leaves there fail the case.
class UserWorldFixture : public ::testing::Test {
 protected:
  void SetUp() override {
    if (staged_program("fs-gen").empty()) HEDDLE_SKIP("fs-gen is not installed in $HEDDLE_STAGE");
    if (::geteuid() != 0) HEDDLE_SKIP("making a user's world needs root");
    world_.emplace();
  }
  void TearDown() override {
    if (world_) expect_nothing_left();
  }
  void expect_nothing_left() const {
    EXPECT_TRUE(wait_until(std::chrono::seconds(30),
                           [&] { return world_->left().empty() && world_->processes().empty(); }))
        << (world_->left().empty() ? "a process" : world_->left()[0]) << " is left";
  }

  std::optional<UserWorld> world_;
};

}  // namespace heddle::test
