// SPDX-License-Identifier: MIT
#pragma once

#include "tests/support/cluster.hpp"
#include "tests/support/prelude.hpp"

namespace heddle::test {

/// The lines of what several processes write.
inline Strings sorted_lines(const std::string& text) {
  auto lines = lines_of(text);
  std::ranges::sort(lines);
  return lines;
}

/// fs-launch on four nodes, on which it leaves nothing.
class OnNodes : public ::testing::Test {
 protected:
  void SetUp() override {
    if (const auto obstacle = Cluster::obstacle(); !obstacle.empty()) HEDDLE_SKIP(obstacle);
    fs_launch_ = staged_program("fs-launch");
    if (fs_launch_.empty()) HEDDLE_SKIP("fs-launch is not installed in $HEDDLE_STAGE");
    bin_ = fs::path(fs_launch_).parent_path().string();
    start_cluster();
  }
  virtual void start_cluster() { cluster_.emplace(dir_.path()); }
  /// Daemons and work directories of heddle's on the nodes.
  std::string left() const {
    std::string out;
    for (int node = 1; node <= 4; ++node)
      out += cluster_->on(node, "ls -d /tmp/hd-* 2>/dev/null; pgrep -a fs-mount").out;
    return out;
  }
  void TearDown() override {
    if (cluster_) {
      EXPECT_TRUE(wait_until(10s, [&] { return left().empty(); })) << left();
    }
    cluster_.reset();
  }

  TestDir dir_;
  std::string fs_launch_, bin_;
  std::optional<Cluster> cluster_;
};

}  // namespace heddle::test
