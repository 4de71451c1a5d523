// SPDX-License-Identifier: MIT
#pragma once

#include <nlohmann/json.hpp>

#include "tests/support/prelude.hpp"
#include "tests/support/strace.hpp"

namespace heddle::test {

/// fs-gen with a TMPDIR and a cache of its own, mounting for any file. Files that a run leaves in
/// TMPDIR, or mounts, fail
/// the case.
class FsGenFixture : public ::testing::Test {
 protected:
  using Words = Strings;
  void SetUp() override {
    fs_gen_ = staged_program("fs-gen");
    if (fs_gen_.empty()) HEDDLE_SKIP("fs-gen is not installed in $HEDDLE_STAGE");
    std::filesystem::create_directory(dir_ / "tmp");
    options_.env = {"TMPDIR=" + dir_ / "tmp", "XDG_CACHE_HOME=" + dir_ / "cache", "HEDDLE_SLOW=/"};
  }
  void TearDown() override {
    if (fs_gen_.empty()) return;
    EXPECT_TRUE(wait_until(std::chrono::seconds(5), [&] { return left().empty(); }))
        << "left in TMPDIR: " << (left().empty() ? "" : left()[0]);
    EXPECT_EQ(mounts_with(dir_ / "tmp"), 0U);
  }

  Words left() const {
    Words out;
    for (const auto& entry : std::filesystem::directory_iterator(dir_ / "tmp"))
      out.push_back(entry.path());
    return out;
  }
  /// The command line of fs-gen -q that writes report() and runs `app`.
  Words command(const Words& app, Words options = {}) const {
    options.insert(options.begin(), {fs_gen_, "-q", "--json", dir_ / "report.json"});
    options.emplace_back("--");
    options.insert(options.end(), app.begin(), app.end());
    return options;
  }
  RunResult run_guided(const Words& app, const Words& options = {}) const {
    return run(command(app, options), options_);
  }
  /// Runs `app` alone and guided and expects the same output and status. Returns the guided run.
  RunResult same(const Words& app, const Words& env = {}) const {
    RunOptions options = options_;
    options.env.insert(options.env.end(), env.begin(), env.end());
    const auto bare = run(app, options);
    auto ours = run(command(app), options);
    EXPECT_EQ(ours.out, bare.out);
    EXPECT_EQ(ours.err, bare.err);
    EXPECT_EQ(ours.status, bare.status);
    return ours;
  }
  /// fs-gen with the arguments `words`.
  RunResult gen(Words words) const {
    words.insert(words.begin(), fs_gen_);
    return run(words, options_);
  }
  /// The report of the last run with --json $DIR/report.json.
  nlohmann::json report() const {
    return nlohmann::json::parse(std::ifstream(dir_ / "report.json"), nullptr, false);
  }
  /// Nothing that changed in the last two seconds is cached.
  static void grow_old() {
    const auto built = std::time(nullptr);
    EXPECT_TRUE(
        wait_until(std::chrono::seconds(20), [&] { return std::time(nullptr) > built + 3; }));
  }
  /// `bash -c script` in $DIR with $FS_GEN set.
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
