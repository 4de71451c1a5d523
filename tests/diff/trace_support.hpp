// SPDX-License-Identifier: MIT
#pragma once

#include <gtest/gtest.h>

#include <fstream>
#include <string>
#include <vector>

#include "base/temp_dir.hpp"
#include "record/trace/trace_reader.hpp"

namespace heddle::trace {

/// An event that owns its bytes.
struct KeptEvent {
  std::string path, exe, resolved, target;
  Event event;
  explicit KeptEvent(const Event& e)
      : path(e.path), exe(e.exe), resolved(e.resolved), target(e.target), event(e) {}
  Event view() const {
    Event e = event;
    e.path = path, e.exe = exe, e.resolved = resolved, e.target = target;
    return e;
  }
};

struct KeptRun {
  RunHeader header;
  std::vector<KeptEvent> events;
  RunFooter footer;
  Ending ending = Ending::no_footer;
};

/// Keeps all it is given.
class KeepingSink : public TraceSink {
 public:
  void begin_run(const RunHeader& header, int number) override {
    EXPECT_EQ(number, static_cast<int>(runs.size()) + 1);
    runs.push_back({header, {}, {}, {}});
  }
  void event(const Event& event) override { runs.back().events.emplace_back(event); }
  void end_run(const RunFooter& footer, Ending ending) override {
    runs.back().footer = footer;
    runs.back().ending = ending;
  }
  std::vector<KeptRun> runs;
};

/// Files for one test, gone after it.
class TraceFiles : public testing::Test {
 protected:
  std::string path(const std::string& name) const { return dir_.path() + "/" + name; }
  std::string file(const std::string& name, std::string_view content) const {
    std::ofstream(path(name), std::ios::binary) << content;
    return path(name);
  }
  static std::string content(const std::string& path) {
    std::ifstream in(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(in), {}};
  }
  /// The message of reading `path`; empty when it is read without error.
  static std::string error_of(const std::string& path, const ReadOptions& options = {}) {
    KeepingSink sink;
    const auto done = read_trace(path, sink, options);
    return done ? "" : done.error().message();
  }
  static std::vector<KeptRun> runs_of(const std::string& path, const ReadOptions& options = {}) {
    KeepingSink sink;
    const auto done = read_trace(path, sink, options);
    EXPECT_TRUE(done.has_value()) << done.error().message();
    return std::move(sink.runs);
  }

 private:
  TempDir dir_ = value_or_throw(TempDir::create("heddle-trace-test"));
};

}  // namespace heddle::trace
