// SPDX-License-Identifier: MIT
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <optional>

#include "tests/fsgen/user_world.hpp"

namespace heddle::test {

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
