// SPDX-License-Identifier: MIT
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "record/diff/run.hpp"
#include "record/diff/smith_waterman.hpp"
#include "record/diff/time_view.hpp"

namespace heddle::diff {

struct CompareOptions {
  bool by_process = false;
  /// How many local alignments; nullopt: one, where the table has at most kFreeCells cells.
  std::optional<std::size_t> local_count;
  Scores scores;
  std::size_t time_count = 5;  ///< entries of each list of the time view
};
/// Smith-Waterman is quadratic; up to this many cells (about a second) it is made unasked.
inline constexpr double kFreeCells = 2e9;

/// Two sequences held against each other: two runs, or two processes of them.
struct Part {
  std::string name;  ///< of the process; empty for whole runs
  Sequence a, b;
  std::vector<EditRun> script;
  std::uint32_t same = 0, replaced = 0, deleted = 0, inserted = 0;
  std::vector<LocalAlignment> local;
  bool local_skipped = false;  ///< too large to be made unasked
  TimeView time;

  std::uint32_t distance() const { return replaced + deleted + inserted; }
};

struct Comparison {
  Run a, b;  ///< their sequences have moved into the parts
  std::vector<Part> parts;
  std::size_t a_events = 0, b_events = 0;
  std::uint32_t same = 0, replaced = 0, deleted = 0, inserted = 0;

  std::uint32_t distance() const { return replaced + deleted + inserted; }
  /// Distance over the longer one's length, part by part: 0 the same, 1 nothing in common.
  double normalised() const;
  double similarity() const { return 1 - normalised(); }
};

/// Fails when the scores make no sense, or by_process is asked of traces without processes.
Result<Comparison> compare(Run a, Run b, const CompareOptions& options);

/// The runs' processes in pairs: per executable, first those that did the very same, then in order
/// of appearance; one without partner meets an empty sequence.
std::vector<Part> pair_processes(const Run& a, const Run& b);

}  // namespace heddle::diff
