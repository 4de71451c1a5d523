// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "record/diff/run.hpp"

namespace heddle::diff {

/// One joint of a tree of runs (average linkage, UPGMA): leaves are runs, 0 .. n-1; joint i has
/// number n + i.
struct Joint {
  std::size_t left = 0;
  std::size_t right = 0;
  double height = 0;  ///< mean distance of the runs on either side
};

/// Many runs, each against each.
struct Matrix {
  std::vector<Run> runs;
  std::vector<std::uint32_t> distance;  ///< n x n, symmetric
  std::vector<Joint> tree;              ///< n - 1 joints, lowest first
  /// How far each run is from its nearest few: the distance to its k-th nearest, k being an eighth
  /// of n, at least 1. So a group of similar runs is never lonely, however far off it is.
  std::vector<std::uint32_t> lonely;
  std::vector<std::size_t> outliers;  ///< runs far from the rest, farthest first

  std::size_t size() const noexcept { return runs.size(); }
  std::uint32_t at(std::size_t i, std::size_t j) const { return distance[i * size() + j]; }
  /// As Comparison::normalised(), of two runs.
  double normalised(std::size_t i, std::size_t j) const;
  std::uint32_t greatest() const;
  /// Runs in the tree's order: what is close stands together.
  std::vector<std::size_t> order() const;
};

/// Compares on all cores. With by_process, distances are summed over pairs of processes; fails when
/// a trace names none.
Result<Matrix> make_matrix(std::vector<Run> runs, bool by_process);

/// Runs whose loneliness lies more than three robust standard deviations (1.4826 MAD) and more than
/// one edit above the median, farthest first. Fewer than three runs have no outlier.
std::vector<std::size_t> find_outliers(const std::vector<std::uint32_t>& lonely);

/// A new run compared with known runs.
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

}  // namespace heddle::diff
