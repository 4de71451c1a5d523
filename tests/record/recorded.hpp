// SPDX-License-Identifier: MIT
#pragma once

#include <iterator>

#include "tests/record/kept_trace.hpp"
#include "tests/support/prelude.hpp"

namespace heddle::test {

/// `text` cut at its spaces.
inline std::vector<std::string> words_of(const std::string& text) {
  std::istringstream in(text);
  return {std::istream_iterator<std::string>(in), {}};
}

using SeenEvent = trace::KeptEvent;
using SeenTrace = trace::KeptRun;

inline bool is_installed(const std::string& program) {
  return run({"sh", "-c", "command -v " + program}).status == 0;
}

/// Lets root run Open MPI with more ranks than cores. hwloc does not look for X displays: its
/// connect(2) is no file call of strace.
inline const std::vector<std::string> kOpenMpi = {
    "OMPI_ALLOW_RUN_AS_ROOT=1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1",
    "OMPI_MCA_rmaps_base_oversubscribe=1", "HWLOC_COMPONENTS=-gl"};

/// The first run of a trace. Throws heddle::Error when the file is no trace.
inline SeenTrace read_seen(const std::string& path) {
  return value_or_throw(trace::read_runs(path)).at(0);
}

/// `fs-record --quiet OPTIONS --out TRACE -- ARGV`.
inline RunResult record(const std::string& trace, const std::vector<std::string>& argv,
                        const RunOptions& options = {}, std::vector<std::string> extra = {}) {
  std::vector<std::string> all{staged_program("fs-record"), "--quiet", "--out", trace};
  all.insert(all.end(), extra.begin(), extra.end());
  all.emplace_back("--");
  all.insert(all.end(), argv.begin(), argv.end());
  return run(all, options);
}

/// Processes whose names begin with `name` and whose environments contain `mark`. Other processes'
/// environments are not read: that blocks while a process is inside execve.
inline std::vector<int> recorders(const std::string& mark, const std::string& name = "fs-record") {
  std::vector<int> out;
  for (const auto& entry : std::filesystem::directory_iterator("/proc")) {
    const int pid = std::atoi(entry.path().filename().c_str());
    if (pid <= 0) continue;
    const auto called = read_file(entry.path() / "comm");
    if (!called || !called->starts_with(name)) continue;
    const auto environment = read_file(entry.path() / "environ");
    if (environment && environment->find(mark) != std::string::npos) out.push_back(pid);
  }
  return out;
}

/// Recording changes nothing that a caller sees.
inline void expect_same(const RunResult& native, const RunResult& recorded) {
  EXPECT_FALSE(recorded.timed_out);
  EXPECT_EQ(native.status, recorded.status) << recorded.err;
  EXPECT_EQ(native.out, recorded.out);
  EXPECT_EQ(native.err, recorded.err);
}

/// The installed fs-record, with a directory for each case.
class Recorder : public ::testing::Test {
 protected:
  void SetUp() override {
    if (program_.empty()) HEDDLE_SKIP("fs-record is not installed in $HEDDLE_STAGE");
  }
  /// Records to run.txt in the case's directory; `argv` runs there.
  RunResult record_here(const std::vector<std::string>& argv,
                        std::vector<std::string> extra = {}) const {
    return record(trace_, argv, {.cwd = dir_.path(), .deadline = std::chrono::seconds(60)},
                  std::move(extra));
  }
  /// Runs `argv` natively and recorded.
  void expect_same_run(const std::vector<std::string>& argv, const RunOptions& options = {}) const {
    expect_same(run(argv, options), record(trace_, argv, options));
    EXPECT_TRUE(read_seen(trace_).complete());
  }

  const std::string program_ = staged_program("fs-record");
  TestDir dir_;
  const std::string trace_ = dir_ / "run.txt";
};

}  // namespace heddle::test
