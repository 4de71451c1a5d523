// SPDX-License-Identifier: MIT
#pragma once

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/support/run.hpp"
#include "tests/support/test_dir.hpp"

namespace heddle::test {

/// fs-gen with a TMPDIR and a cache of its own; what a run leaves there, or mounted, fails the
/// case.
class FsGenFixture : public ::testing::Test {
 protected:
  void SetUp() override {
    fs_gen_ = staged_program("fs-gen");
    if (fs_gen_.empty()) HEDDLE_SKIP("fs-gen is not installed in $HEDDLE_STAGE");
    std::filesystem::create_directory(dir_ / "tmp");
    options_.env = {"TMPDIR=" + dir_ / "tmp", "XDG_CACHE_HOME=" + dir_ / "cache"};
  }
  void TearDown() override {
    if (fs_gen_.empty()) return;
    EXPECT_TRUE(wait_until(std::chrono::seconds(5), [&] { return left().empty(); }))
        << "left in TMPDIR: " << (left().empty() ? "" : left()[0]);
    EXPECT_EQ(mounts_with(dir_ / "tmp"), 0U);
  }

  std::vector<std::string> left() const {
    std::vector<std::string> out;
    for (const auto& entry : std::filesystem::directory_iterator(dir_ / "tmp"))
      out.push_back(entry.path());
    return out;
  }
  std::vector<std::string> command(std::vector<std::string> words) const {
    std::vector<std::string> out{fs_gen_, "-q", "--"};
    out.insert(out.end(), words.begin(), words.end());
    return out;
  }
  /// fs-gen with `words` behind its name.
  RunResult gen(std::vector<std::string> words) const {
    words.insert(words.begin(), fs_gen_);
    return run(words, options_);
  }
  /// What `--json $DIR/report.json` wrote.
  nlohmann::json report() const {
    return nlohmann::json::parse(std::ifstream(dir_ / "report.json"), nullptr, false);
  }
  RunResult run_guided(std::vector<std::string> words) const {
    return run(command(std::move(words)), options_);
  }
  /// `sh -c script` with $FS_GEN and $DIR set; for what a shell does to descriptors and limits.
  RunResult sh(const std::string& script) const {
    RunOptions options = options_;
    options.cwd = dir_.path();
    options.env.push_back("FS_GEN=" + fs_gen_);
    options.env.push_back("DIR=" + dir_.path());
    return run({"/bin/bash", "-c", script}, options);
  }

  TestDir dir_;
  std::string fs_gen_;
  RunOptions options_;
};

}  // namespace heddle::test
