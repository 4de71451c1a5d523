// SPDX-License-Identifier: MIT
#pragma once

#include <string>

#include "tests/support/prelude.hpp"

namespace heddle::test {

/// Holds without a cluster: no rank needs to be there.
class Hold : public ::testing::Test {
 protected:
  void SetUp() override {
    fs_launch_ = staged_program("fs-launch");
    if (fs_launch_.empty()) HEDDLE_SKIP("fs-launch is not installed in $HEDDLE_STAGE");
  }
  RunResult sh(const std::string& script) const {
    return run({"sh", "-c", script},
               {{"XDG_CACHE_HOME=" + dir_.path(), "FS_LAUNCH=" + fs_launch_}, dir_.path()});
  }
  /// Of the hold `h`.
  std::string content(const std::string& name) const { return sh("cat heddle/hold/h/" + name).out; }

  TestDir dir_;
  std::string fs_launch_;
};

}  // namespace heddle::test
