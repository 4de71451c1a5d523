// SPDX-License-Identifier: MIT
#pragma once

#include <gtest/gtest.h>

#include <fstream>

#include "base/temp_dir.hpp"
#include "record/trace/trace_writer.hpp"
#include "tests/record/kept_trace.hpp"

namespace heddle::trace {

/// Files of one test, in a directory that is removed after it.
class TraceFiles : public testing::Test {
 protected:
  std::string path(const std::string& name) const { return dir_.path() + "/" + name; }
  std::string file(const std::string& name, std::string_view content) const {
    std::ofstream(path(name), std::ios::binary) << content;
    return path(name);
  }
  static std::string content(const std::string& path) { return value_or_throw(read_file(path)); }
  /// A trace of `events`; `footer`: whether it ends with one.
  std::string trace(const std::string& name, const std::vector<Event>& events,
                    Form form = Form::text, const RunHeader& header = {},
                    bool footer = true) const {
    auto writer = value_or_throw(TraceWriter::create(path(name), header, form));
    for (const Event& e : events) writer.append(e);
    if (footer) value_or_throw(writer.finish(true, 137, 99));
    return path(name);
  }
  /// The message of reading `path`; empty when it is read without error.
  static std::string error_of(const std::string& path) {
    const auto runs = read_runs(path);
    return runs ? "" : runs.error().message();
  }
  static std::vector<KeptRun> runs_of(const std::string& path, const ReadOptions& options = {}) {
    return value_or_throw(read_runs(path, options));
  }

 private:
  TempDir dir_ = value_or_throw(TempDir::create("heddle-trace-test"));
};

}  // namespace heddle::trace
