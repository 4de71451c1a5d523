// SPDX-License-Identifier: MIT
#pragma once

#include <nlohmann/json.hpp>

#include "record/diff/fs_diff.hpp"
#include "record/trace/trace_writer.hpp"
#include "tests/diff/trace_support.hpp"

namespace heddle {

/// What a call of fs_diff() did.
struct Outcome {
  int status = -1;
  std::string out;
  std::string err;
};

/// fs-diff in this process, with traces made on the spot.
class FsDiff : public trace::TraceFiles {
 protected:
  static Outcome run(std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), "fs-diff");
    std::vector<char*> argv;
    for (std::string& a : arguments) argv.push_back(a.data());
    argv.push_back(nullptr);
    testing::internal::CaptureStdout();
    testing::internal::CaptureStderr();
    Outcome outcome;
    outcome.status = fs_diff(static_cast<int>(arguments.size()), argv.data());
    std::fflush(stdout);
    outcome.out = testing::internal::GetCapturedStdout();
    outcome.err = testing::internal::GetCapturedStderr();
    return outcome;
  }
  static nlohmann::json json(std::vector<std::string> arguments) {
    arguments.emplace_back("--json");
    const Outcome outcome = run(std::move(arguments));
    EXPECT_NE(outcome.status, 2) << outcome.err;
    return nlohmann::json::parse(outcome.out, nullptr, false);
  }

  /// A trace of opens, a millisecond apart. A path that starts with '!' is missed.
  std::string opens(const std::string& name, const std::vector<std::string>& paths) const {
    std::vector<trace::Event> events;
    for (const std::string& path : paths) {
      trace::Event e;
      e.op = trace::Op::open;
      e.error = path.starts_with('!') ? ENOENT : 0;
      e.path = std::string_view(path).substr(e.error != 0);
      e.pid = e.tid = 100;
      e.exe = "/usr/bin/app";
      events.push_back(e);
    }
    return trace(name, events);
  }
  /// `events`, their times set where they are 0.
  std::string trace(const std::string& name, std::vector<trace::Event> events) const {
    auto writer = value_or_throw(trace::TraceWriter::create(path(name), {}, trace::Form::text));
    for (std::size_t i = 0; i < events.size(); ++i) {
      if (events[i].ns == 0) events[i].ns = i * 1'000'000;
      writer.append(events[i]);
    }
    EXPECT_TRUE(writer.finish(true, 0, events.size() * 1'000'000).has_value());
    return path(name);
  }
};

}  // namespace heddle
