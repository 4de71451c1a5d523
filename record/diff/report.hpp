// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "record/diff/comparison.hpp"

namespace heddle::diff {

enum class ScriptStyle { none, unified, context };

struct ReportOptions {
  ScriptStyle style = ScriptStyle::unified;
  std::uint32_t context = 3;
  bool colour = false;
  std::vector<std::string> rules;  ///< TokenRules::names()
  std::vector<std::string> ops;    ///< empty: all
  bool by_process = false;
  Scores scores;
};

/// For people: the script, then what it comes to.
std::string text_report(const Comparison& c, const TokenTable& table, const ReportOptions& options);
/// For programs: one object; docs/man/fs-diff.1.scd lists its fields.
std::string json_report(const Comparison& c, const TokenTable& table, const ReportOptions& options);
/// For browsers: one page that needs nothing else.
std::string html_report(const Comparison& c, const TokenTable& table, const ReportOptions& options);

/// "1.234567890 s", with a sign where asked.
std::string seconds_text(std::int64_t ns, bool sign = false);
/// "ops open,lookup; normalisers soname,pid": what was compared, in a line.
std::string rules_text(const ReportOptions& options);
/// What a run is, in a line: format, events, host, start.
std::string run_text(const Run& run, std::size_t events);
/// Adds what was compared to a JSON output: `ops` and `normalisers`.
void put_rules(nlohmann::ordered_json& j, const ReportOptions& options);

}  // namespace heddle::diff
