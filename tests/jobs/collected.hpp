// SPDX-License-Identifier: MIT
#pragma once

#include "tests/jobs/archive_text.hpp"

namespace heddle::test {

/// A job with fs-job's own spool, in a directory of its own.
class Collected : public ::testing::Test {
 protected:
  void SetUp() override {
    fs_job_ = staged_program("fs-job");
    if (fs_job_.empty()) HEDDLE_SKIP("fs-job is not installed in $HEDDLE_STAGE");
    options_.env = {"HEDDLE_JOB_SPOOL=" + (dir_ / "spool"), "SLURM_JOB_ID=1"};
    options_.cwd = dir_.path();
  }
  RunResult fs_job(const Strings& words) const { return run(Strings{fs_job_} + words, options_); }
  RunResult sh(const std::string& script) const { return run({"sh", "-c", script}, options_); }
  /// `fs-job run command`; its archive is in archive_.
  RunResult collect(const Strings& command, const Strings& options = {}) {
    for (const auto& file : archives()) fs::remove(file);
    const auto result = fs_job(Strings{"run", "-q"} + options + Strings{"--"} + command);
    const auto found = archives();
    EXPECT_EQ(found.size(), 1U) << result.err;
    if (!found.empty()) archive_ = read_job(found[0]);
    return result;
  }
  Strings archives() const {
    Strings out;
    for (const auto& entry : fs::directory_iterator(dir_.path()))
      if (entry.path().string().ends_with(".gz") || entry.path().extension() == ".tgz")
        out.push_back(entry.path());
    return out;
  }
  /// A program of C source `text`.
  std::string compile(const std::string& name, const std::string& text, const Strings& flags = {}) {
    std::ofstream(dir_ / (name + ".c")) << text;
    run_checked(Strings{"cc", "-O1", "-o", dir_ / name, dir_ / (name + ".c")} + flags);
    return dir_ / name;
  }

  /// Of what archives() have: the programs `echo` and `true`, by the job's restart.
  std::map<int, std::string> programs_by_restart() const {
    std::map<int, std::string> out;
    for (const auto& file : archives()) {
      const auto found = read_job(file);
      for (const std::string name : {"echo", "true"})
        if (!found.of(name).empty()) out[found.job["restart"]] += name + " ";
      EXPECT_EQ(found.job["collector"].contains("left"), found.job["restart"] == 0);
    }
    return out;
  }

  TestDir dir_;
  std::string fs_job_;
  RunOptions options_;
  JobArchive archive_;
};

}  // namespace heddle::test
