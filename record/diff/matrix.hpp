// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "record/diff/run.hpp"

namespace heddle::diff {

/// An inner node of a tree of runs (average linkage, UPGMA). Leaves 0 .. n-1 are runs; joint i is
/// node n + i.
struct Joint {
  std::size_t left = 0;
  std::size_t right = 0;
  double height = 0;  ///< mean distance between the runs of both sides
};

/// Many runs, each compared with each.
struct Matrix {
  std::vector<Run> runs;
  std::vector<std::uint32_t> distance;           ///< n x n, symmetric
  std::vector<Joint> tree;                       ///< n - 1 joints, lowest first
  std::vector<std::vector<std::size_t>> groups;  ///< of equal runs, in the order of their first
  std::vector<std::size_t> nearest;              ///< of each run; of a single one: itself
  std::vector<std::size_t> outliers;             ///< runs far from the rest, farthest first

  std::size_t size() const noexcept { return runs.size(); }
  std::uint32_t at(std::size_t i, std::size_t j) const { return distance[i * size() + j]; }
  /// As Comparison::normalised(), of two runs.
  double normalised(std::size_t i, std::size_t j) const;
  std::uint32_t greatest() const;
  /// Runs in the tree's order: similar ones are next to one another.
  std::vector<std::size_t> order() const;
};

/// Compares on all cores. By process or thread, distances are summed over pairs of these; fails
/// when a trace names none.
Result<Matrix> make_matrix(std::vector<Run> runs, By by);

/// From each run's distance to its nearest: those more than three robust standard deviations
/// (1.4826 MAD) and more than one edit above the median, greatest first. Fewer than three runs have
/// none.
std::vector<std::size_t> find_outliers(const std::vector<std::uint32_t>& to_nearest);

/// A new run compared with known runs.
struct BaselineVerdict {
  std::vector<Run> known;
  Run fresh;
  std::vector<std::uint32_t> distance;  ///< fresh to each known run
  std::size_t nearest = 0;              ///< index of the closest known run
  std::uint32_t usual = 0;        ///< the greatest distance of a known run to its nearest known run
  std::uint32_t limit = 0;        ///< usual, or the caller's limit
  std::vector<Token> never_seen;  ///< tokens of fresh that no known run has, in its order
  std::vector<Token> always_missing;  ///< tokens that every known run has and fresh has not

  bool outside() const { return distance[nearest] > limit; }
};

/// Fails without known runs, or by process or thread when a trace names none.
Result<BaselineVerdict> judge(std::vector<Run> known, Run fresh, By by,
                              std::optional<std::uint32_t> limit);

}  // namespace heddle::diff
