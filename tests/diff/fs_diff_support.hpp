// SPDX-License-Identifier: MIT
#pragma once

#include <nlohmann/json.hpp>

#include "tests/diff/trace_support.hpp"
#include "tests/support/run.hpp"

namespace heddle {

/// Runs fs-diff on traces that the test makes.
class FsDiff : public trace::TraceFiles {
 protected:
  static test::RunResult run(std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), HEDDLE_FS_DIFF);
    return test::run(arguments);
  }
  static nlohmann::json json(std::vector<std::string> arguments) {
    arguments.emplace_back("--json");
    const auto done = run(std::move(arguments));
    EXPECT_NE(done.status, 2) << done.err;
    return nlohmann::json::parse(done.out, nullptr, false);
  }

  /// A trace of opens, a millisecond apart. An open of a path that starts with '!' fails.
  std::string opens(const std::string& name, const std::vector<std::string>& paths) const {
    std::vector<trace::Event> events;
    for (const std::string& path : paths) {
      const bool missed = path.starts_with('!');
      events.push_back({.ns = events.size() * 1'000'000,
                        .pid = 100,
                        .tid = 100,
                        .op = trace::Op::open,
                        .error = missed ? ENOENT : 0,
                        .path = std::string_view(path).substr(missed),
                        .exe = "/usr/bin/app"});
    }
    return trace(name, events);
  }
};

}  // namespace heddle
