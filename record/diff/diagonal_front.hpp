// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <vector>

#include "record/diff/levenshtein.hpp"

namespace heddle::diff {

// How far e edits reach on each diagonal (Ukkonen 1985; Landau and Vishkin 1989), from both ends.
//
// Diagonal k holds the cells (i, i + k). F_e(k) is the greatest i that at most e edits reach from
// (0, 0) on it:
//   F_e(k) = slide(max(F_(e-1)(k) + 1, F_(e-1)(k - 1), F_(e-1)(k + 1) + 1))
// being a replacement, an insertion and a deletion; slide() follows equal tokens for nothing. The
// same from the other end gives G_e(k), the greatest n - i. Values along a diagonal never fall, by
// at most one a cell, so the distance is at most e + e' as soon as F_e(k) + G_e'(k) >= n for some
// k, and the cell met there lies on a shortest path: that is where the script is cut in two.

/// One step of a front. Pointers are shifted so that index k is diagonal k; old and now have valid
/// (or kUnreached) cells from lo - 1 to hi + 1.
struct FrontStep {
  const Token* a;  ///< first token; in a backward step one past the last
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

// The kernels: fill step.now from lo to hi. What a front may not leave (clamping) and how far equal
// tokens go is theirs.
void step_forward_scalar(const FrontStep& step);
void step_backward_scalar(const FrontStep& step);
void step_forward_avx2(const FrontStep& step);
void step_backward_avx2(const FrontStep& step);
/// A k in [lo, hi] with f[k] + g[k] >= n; hi + 1 when there is none.
std::int32_t find_meeting_scalar(const std::int32_t* f, const std::int32_t* g, std::int32_t lo,
                                 std::int32_t hi, std::int32_t n);
std::int32_t find_meeting_avx2(const std::int32_t* f, const std::int32_t* g, std::int32_t lo,
                               std::int32_t hi, std::int32_t n);

}  // namespace heddle::diff
