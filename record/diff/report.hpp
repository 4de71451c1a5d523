// SPDX-License-Identifier: MIT
#pragma once

#include <string>
#include <vector>

#include "record/diff/comparison.hpp"
#include "record/diff/matrix.hpp"

namespace heddle::diff {

enum class ScriptStyle { none, unified, context };

struct ReportOptions {
  ScriptStyle style = ScriptStyle::unified;
  std::uint32_t context = 3;
  bool colour = false;
  std::vector<std::string> rules;  ///< TokenRules::names()
  std::vector<std::string> ops;    ///< empty: all
  CompareOptions compare;
};

/// For terminals. Of two runs: the script, then the totals.
std::string text_report(const Comparison& c, const TokenTable& table, const ReportOptions& options);
std::string text_report(const Matrix& m, const TokenTable& table, const ReportOptions& options);
std::string text_report(const BaselineVerdict& v, const TokenTable& table,
                        const ReportOptions& options);
/// One JSON object; docs/man/fs-diff.1.scd lists its fields.
std::string json_report(const Comparison& c, const TokenTable& table, const ReportOptions& options);
std::string json_report(const Matrix& m, const TokenTable& table, const ReportOptions& options);
std::string json_report(const BaselineVerdict& v, const TokenTable& table,
                        const ReportOptions& options);
/// One page that needs no other file. Its data is the JSON report, with samples of the alignment in
/// place of the script.
std::string html_report(const Comparison& c, const TokenTable& table, const ReportOptions& options);
std::string html_report(const Matrix& m, const ReportOptions& options);

}  // namespace heddle::diff
