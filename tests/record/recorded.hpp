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
#include "record/trace/trace_reader.hpp"
#include "tests/support/run.hpp"
#include "tests/support/test_dir.hpp"

namespace heddle::test {

/// `text` cut at its spaces.
inline std::vector<std::string> words_of(const std::string& text) {
  std::istringstream in(text);
  return {std::istream_iterator<std::string>(in), {}};
}

/// An event with strings of its own.
struct SeenEvent {
  trace::Op op;
  int error;
  int pid;
  int tid;
  std::string path, resolved, target, exe;
  std::int64_t bytes;
  /// Where it ended up: the resolved path, or the path.
  const std::string& place() const { return resolved.empty() ? path : resolved; }
};

struct SeenTrace final : trace::TraceSink {
  trace::RunHeader header;
  trace::RunFooter footer;
  trace::Ending ending = trace::Ending::no_footer;
  std::vector<SeenEvent> events;

  void begin_run(const trace::RunHeader& h, int) override { header = h; }
  void event(const trace::Event& e) override {
    events.push_back({e.op, e.error, e.pid, e.tid, std::string(e.path), std::string(e.resolved),
                      std::string(e.target), std::string(e.exe), e.bytes});
  }
  void end_run(const trace::RunFooter& f, trace::Ending how) override {
    footer = f;
    ending = how;
  }
  bool complete() const { return ending == trace::Ending::footer && footer.complete; }
  /// Places of the events of `op` with `error`, sorted.
  std::vector<std::string> places(trace::Op op, int error = 0) const {
    std::vector<std::string> out;
    for (const auto& e : events)
      if (e.op == op && e.error == error) out.push_back(e.place());
    std::sort(out.begin(), out.end());
    return out;
  }
};

/// Throws heddle::Error when the file is no trace.
inline SeenTrace read_seen(const std::string& path) {
  SeenTrace seen;
  value_or_throw(trace::read_trace(path, seen));
  return seen;
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
