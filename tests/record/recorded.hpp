// SPDX-License-Identifier: MIT
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <iterator>
#include <sstream>
#include <string>
#include <vector>

#include "base/fd.hpp"
#include "tests/record/kept_trace.hpp"
#include "tests/support/run.hpp"
#include "tests/support/test_dir.hpp"

namespace heddle::test {

/// `text` cut at its spaces.
inline std::vector<std::string> words_of(const std::string& text) {
  std::istringstream in(text);
  return {std::istream_iterator<std::string>(in), {}};
}

using SeenEvent = trace::KeptEvent;
using SeenTrace = trace::KeptRun;

/// The run of a trace. Throws heddle::Error when the file is none.
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

/// Processes of recorders, by the beginning of their names, that have `mark` in their environment.
/// However stuck what they record is: no file in /proc of a process that may be in the midst of
/// execve is read for it.
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

/// What fs-record is allowed to differ in: nothing.
inline void expect_same(const RunResult& native, const RunResult& recorded) {
  EXPECT_FALSE(recorded.timed_out);
  EXPECT_EQ(native.status, recorded.status) << recorded.err;
  EXPECT_EQ(native.out, recorded.out);
  EXPECT_EQ(native.err, recorded.err);
}

inline void expect_same_run(const std::vector<std::string>& argv, const RunOptions& options = {}) {
  HEDDLE_STAGED(program, "fs-record");
  TestDir dir;
  const auto native = run(argv, options);
  const auto recorded = record(dir / "run.txt", argv, options);
  expect_same(native, recorded);
  EXPECT_TRUE(read_seen(dir / "run.txt").complete());
}

}  // namespace heddle::test
