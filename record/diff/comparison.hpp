// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "record/diff/run.hpp"

namespace heddle::diff {

/// Edits that stand close together, with the events around them: one block of a script.
struct Hunk {
  std::uint32_t a = 0, a_length = 0;
  std::uint32_t b = 0, b_length = 0;
  std::vector<EditRun> runs;
};

/// A script's edits with `context` equal events around each; blocks that would touch are one.
std::vector<Hunk> make_hunks(const std::vector<EditRun>& script, std::uint32_t context);

/// An event both runs have, at different times. Indices into the sequences, times in ns since
/// start.
struct Shift {
  std::size_t a = 0;
  std::size_t b = 0;
  std::int64_t later = 0;  ///< b's time less a's
  std::int64_t step = 0;   ///< how much of it is new since the last event both have
};

/// Where the same access came much later or earlier.
struct TimeView {
  std::vector<Shift> steps;  ///< aligned events before which one run waited; greatest |step| first
  /// Events in both that the script could not align; greatest |later| first.
  std::vector<Shift> moves;
  std::size_t move_count = 0;
  std::int64_t end_later = 0;  ///< at the last event both have
};

struct CompareOptions {
  bool by_process = false;
  /// How many local alignments; nullopt: one, where the table has at most kFreeCells cells.
  std::optional<std::size_t> local_count;
  Scores scores;
  std::size_t time_count = 5;  ///< entries of each list of the time view
};
/// Smith-Waterman is quadratic; up to this many cells (about a second) it is computed by default.
inline constexpr double kFreeCells = 2e9;

/// Events of an alignment, by kind.
struct Counts {
  std::uint32_t same = 0, replaced = 0, deleted = 0, inserted = 0;
  std::uint32_t distance() const { return replaced + deleted + inserted; }
  void add(const std::vector<EditRun>& script) {
    std::uint32_t* const counts[] = {&same, &replaced, &deleted, &inserted};  // as EditKind
    for (const EditRun& run : script) *counts[static_cast<std::size_t>(run.kind)] += run.length;
  }
};

/// Two sequences compared: two runs, or two processes of them.
struct Part : Counts {
  std::string name;  ///< of the process; empty for whole runs
  Sequence a, b;
  std::vector<EditRun> script;
  std::vector<LocalAlignment> local;
  bool local_skipped = false;  ///< too large to be computed by default
  TimeView time;
};

struct Comparison : Counts {
  Run a, b;  ///< their sequences have moved into the parts
  std::vector<Part> parts;
  std::size_t a_events = 0, b_events = 0;

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
