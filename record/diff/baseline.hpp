// SPDX-License-Identifier: MIT
#pragma once

#include <string>
#include <vector>

#include "record/diff/report.hpp"

namespace heddle::diff {

/// A new run held against what known runs do among themselves.
struct BaselineVerdict {
  std::vector<Run> known;
  Run fresh;
  std::vector<std::uint32_t> distance;  ///< fresh to each known run
  std::size_t nearest = 0;              ///< index of the closest known run
  /// The greatest distance of a known run to its own nearest neighbour: what is usual here.
  std::uint32_t usual = 0;
  std::uint32_t limit = 0;            ///< usual, or what the caller set
  std::vector<Token> never_seen;      ///< tokens of fresh that no known run has, in its order
  std::vector<Token> always_missing;  ///< tokens that every known run has and fresh lacks

  bool outside() const { return distance[nearest] > limit; }
};

/// Fails without known runs, or by process where a trace names none.
Result<BaselineVerdict> judge(std::vector<Run> known, Run fresh, bool by_process,
                              std::optional<std::uint32_t> limit);

std::string baseline_text(const BaselineVerdict& v, const TokenTable& table,
                          const ReportOptions& options);
std::string baseline_json(const BaselineVerdict& v, const TokenTable& table,
                          const ReportOptions& options);

}  // namespace heddle::diff
