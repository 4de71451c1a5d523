// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "record/diff/run.hpp"

namespace heddle::diff {

/// One block of a script: edits close to one another, with the events around them.
struct Hunk {
  std::uint32_t a = 0, a_length = 0;
  std::uint32_t b = 0, b_length = 0;
  std::vector<EditRun> runs;
};

/// A script's edits with `context` equal events around each; blocks that touch are merged.
std::vector<Hunk> make_hunks(const std::vector<EditRun>& script, std::uint32_t context);

/// An event of both runs, at different times. Indices into the sequences, times in ns.
struct Shift {
  std::size_t a = 0;
  std::size_t b = 0;
  std::int64_t later = 0;  ///< b's time less a's
  std::int64_t step = 0;   ///< the part of `later` that is new since the previous common event
};

/// Accesses that came much later or earlier.
struct TimeView {
  std::vector<Shift> steps;  ///< aligned events before which one run waited; greatest |step| first
  /// Events in both that the script could not align; greatest |later| first.
  std::vector<Shift> moves;
  std::size_t move_count = 0;
  std::int64_t end_later = 0;  ///< `later` of the last common event
};

/// A number of edits, or a share of the longer run's events.
struct DistanceLimit {
  double value = 0;
  bool share = false;
  bool allows(std::uint32_t distance, double normalised) const {
    return share ? normalised <= value : distance <= value;
  }
  /// Not less than the greatest allowed distance of runs with at most `events` events.
  std::uint32_t at_most(std::size_t events) const {
    return static_cast<std::uint32_t>(share ? value * static_cast<double>(events) + 1 : value);
  }
};

struct CompareOptions {
  By by = By::run;
  /// Beyond it a distance may be an upper bound.
  std::optional<DistanceLimit> max_distance;
  std::function<void(double)> progress;  ///< Effort::progress, of the part that is being aligned
  /// Number of local alignments; nullopt: one, if the table has at most kFreeCells cells.
  std::optional<std::size_t> local_count;
  Scores scores;
  std::size_t time_count = 5;  ///< entries of each list of the time view
};
/// Smith-Waterman is quadratic: it is computed by default up to this many cells (about a second).
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
  bool exact = true;  ///< false: there may be a shorter script
  std::vector<LocalAlignment> local;
  bool local_skipped = false;  ///< too large for the default
  TimeView time;
};

/// A path that one run used or missed, and the other did not.
struct FileChange {
  std::string_view path;     ///< the token table's
  std::string_view process;  ///< executable of the first event with it
  bool found = false;        ///< of a missed path: the other run found it
};

/// The runs' files, sorted by directory. Used is a path with a successful event other than a lookup
/// (in traces of lookups alone: with any), missed is one with an ENOENT.
struct FileView {
  std::vector<FileChange> only_a, only_b;
  std::vector<FileChange> missed_a, missed_b;  ///< by this run alone
};

struct Comparison : Counts {
  Run a, b;  ///< without their sequences, which the parts have
  std::vector<Part> parts;
  std::size_t a_events = 0, b_events = 0;
  std::size_t longest = 0;  ///< events of the longer sequences, summed over the parts
  FileView files;
  /// Events by how often they occur, wherever: only in a, only in b, in both.
  std::size_t only_a = 0, only_b = 0, in_both = 0;

  bool exact() const;
  /// The runs differ in the order of their events only.
  bool differs_in_order() const { return distance() > 0 && only_a == 0 && only_b == 0; }
  /// The distance divided by the length of the longer sequence, summed over the parts: 0 means the
  /// same, 1 nothing in common.
  double normalised() const;
  double similarity() const { return 1 - normalised(); }
};

/// Fails when the scores are invalid, or by process or thread when a trace names none. The result
/// refers to `table`, whose tokens the runs have.
Result<Comparison> compare(Run a, Run b, const TokenTable& table, const CompareOptions& options);

/// The runs' processes in pairs: for each executable first those with equal sequences, then in
/// order of appearance. One without a partner is paired with an empty sequence.
std::vector<Part> pair_processes(const Run& a, const Run& b);

}  // namespace heddle::diff
