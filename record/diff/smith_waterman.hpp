// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <vector>

#include "base/result.hpp"
#include "record/diff/levenshtein.hpp"

namespace heddle::diff {

/// What an alignment earns and pays. A gap of length L costs gap_open + (L - 1) * gap_extend.
struct Scores {
  std::int32_t match = 1;
  std::int32_t mismatch = 1;    ///< cost, as the next two: not negative
  std::int32_t gap_open = 1;    ///< of a gap's first event
  std::int32_t gap_extend = 1;  ///< of each further one
  bool operator==(const Scores&) const = default;
};

/// A stretch of both sequences that align better than anything around them. Half-open, from 0.
struct LocalAlignment {
  std::int64_t score = 0;
  std::size_t a_begin = 0, a_end = 0;
  std::size_t b_begin = 0, b_end = 0;
  /// How they align; empty when the stretch is too long to keep its table (see kPathCells).
  std::vector<EditRun> path;
};
inline constexpr std::size_t kPathCells = std::size_t{1} << 26;

/// The best local alignments (Smith and Waterman 1981, affine gaps after Gotoh 1982), best first,
/// at most `count`. Each next one is the best that uses no event of `a` used before. Among equals:
/// the one that ends first in `a`, then in `b`, and is shortest. Time n m a result found, memory
/// linear (and the path's table). Fails when the scores are negative or could overflow.
Result<std::vector<LocalAlignment>> best_local_alignments(Tokens a, Tokens b, const Scores& scores,
                                                          std::size_t count,
                                                          Simd level = best_simd());

/// Best score and where it ends: the first such cell by row, then by column. From 0; inclusive.
struct LocalEnd {
  std::int32_t score = 0;
  std::size_t a = 0;
  std::size_t b = 0;
  bool operator==(const LocalEnd&) const = default;
};
/// The kernel's pass over the whole table, linear memory. Public for tests and benches.
LocalEnd local_end(Tokens a, Tokens b, const Scores& scores, Simd level = best_simd());

}  // namespace heddle::diff
