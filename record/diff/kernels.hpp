// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <vector>

#include "record/diff/alignment.hpp"

namespace heddle::diff {

// Edit distances by bit vectors (Myers 1999, in Hyyro's 2003 form), for sequences that have little
// in common: a column of 64 rows costs some 15 instructions whatever the tokens. Rows are processed
// in strips, each over all columns, so the table of "which rows hold this token" is needed for one
// strip only: any alphabet, linear memory.

/// One strip: eight blocks of 64 rows, each in a lane.
inline constexpr std::size_t kBlocks = 8, kStripRows = 64 * kBlocks;
struct BitStrip {
  const std::uint16_t* columns;  ///< slots of b's tokens; kBlocks - 1 slots 0 before and after
  std::int64_t m;
  const std::uint64_t* rows_with;  ///< [slot * kBlocks + lane]: rows with that token; slot 0: none
  std::int8_t* delta;  ///< D(row, j + 1) - D(row, j); in: of the row above, out: of the last row
  int last_row;        ///< 0 to kStripRows - 1
};

// How far e edits reach on each diagonal (Ukkonen 1985; Landau and Vishkin 1989), from both ends.
//
// Diagonal k holds the cells (i, i + k). F_e(k) is the greatest i that at most e edits reach from
// (0, 0) on it:
//   F_e(k) = slide(max(F_(e-1)(k) + 1, F_(e-1)(k - 1), F_(e-1)(k + 1) + 1))
// The three terms are a replacement, an insertion and a deletion; slide() follows equal tokens at
// no cost. The same from the other end gives G_e(k), the greatest n - i. Along a diagonal D never
// falls, and grows by at most one a cell, so the distance is at most e + e' as soon as
// F_e(k) + G_e'(k) >= n for some k. That cell lies on a shortest path: the script is cut there.

/// One step of a front. Pointers are shifted so that index k is diagonal k; old and now are valid
/// (or kUnreached) from lo - 1 to hi + 1.
struct FrontStep {
  const Token* a;  ///< the first token; one past the last in a backward step
  const Token* b;
  std::int32_t n;
  std::int32_t m;
  std::int32_t lo;
  std::int32_t hi;
  const std::int32_t* old;
  std::int32_t* now;
};
inline constexpr std::int32_t kUnreached = std::numeric_limits<std::int32_t>::min() / 2;

/// Where to cut: the first `a` tokens against the first `b`, costing `before` of the distance.
struct Cut {
  std::uint32_t distance = 0;
  std::uint32_t before = 0;
  std::uint32_t a = 0;
  std::uint32_t b = 0;
};

/// The exact distance and a cut on a shortest path; nullopt when the distance is above `limit`.
/// Needs n, m > 0. Time O(n + d^2), memory O(d).
std::optional<Cut> cut_by_diagonals(Tokens a, Tokens b, std::uint32_t limit, Simd level);

/// Two strips of kLocalLanes rows each, over all columns. Rows beyond the last have a token that no
/// column has. Column c of an array is at [m - 1 - c]; all arrays have kLocalLanes more cells on
/// both sides.
inline constexpr std::int64_t kLocalLanes = 8;
struct LocalStrips {
  const Token* rows;
  const Token* columns;  ///< the padding: a token that no row has
  std::int64_t m;
  std::int32_t* score;  ///< in: of the row above, out: of the last row here
  std::int32_t* down;   ///< likewise: the vertical gap that enters the next row
  Scores scores;
  std::int32_t to_beat;
};

/// The best cell of the strips above to_beat: the smallest row, then the smallest column.
struct LocalBest {
  std::int32_t score = 0;  ///< 0: none above to_beat
  std::int32_t row = 0;
  std::int32_t column = 0;
};

struct Kernels {
  void (*bit_strip)(const BitStrip&);
  /// Fill step.now from lo to hi.
  void (*step_forward)(const FrontStep&);
  void (*step_backward)(const FrontStep&);
  /// A k in [lo, hi] with f[k] + g[k] >= n; hi + 1 when there is none.
  std::int32_t (*find_meeting)(const std::int32_t* f, const std::int32_t* g, std::int32_t lo,
                               std::int32_t hi, std::int32_t n);
  LocalBest (*local_strips)(const LocalStrips&);
};
const Kernels& kernels_of(Simd level);
extern const Kernels kPortableKernels, kAvx2Kernels;

}  // namespace heddle::diff
