// SPDX-License-Identifier: MIT
#pragma once

#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "record/diff/report.hpp"

namespace heddle {

/// A distance, or a share of the longer run's events (`5%`, `0.05`).
struct DistanceLimit {
  double value = 0;
  bool share = false;
  /// Whether `distance` of runs with at most `events` events is within.
  bool allows(std::uint32_t distance, double normalised) const {
    return share ? normalised <= value : distance <= value;
  }
};
Result<DistanceLimit> parse_limit(const std::string& text);

/// fs-diff's command line.
struct FsDiffOptions {
  std::vector<std::string> files;
  bool matrix = false;
  std::string baseline;
  std::optional<DistanceLimit> max_distance;
  diff::TokenRules rules;
  diff::CompareOptions compare;
  diff::ReportOptions report;
  trace::ReadOptions read;
  bool json = false;
  bool quiet = false;
  std::string html;  ///< file to write, empty: none
};

/// The options, or the exit status of a call that has been answered: help, version, usage error.
std::variant<FsDiffOptions, int> parse_fs_diff(int argc, char** argv);

}  // namespace heddle
