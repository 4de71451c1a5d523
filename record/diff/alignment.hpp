// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string_view>
#include <vector>

#include "base/result.hpp"

namespace heddle::diff {

// Global and local alignments of two sequences of tokens; kernels.hpp has the kernels.

/// A build of the kernels. All give the same results; tests compare them.
enum class Simd { portable, avx2 };

/// The fastest build that this CPU runs.
Simd best_simd();
/// All builds that this CPU runs, portable first: for tests and benchmarks.
std::vector<Simd> simd_levels();
std::string_view simd_name(Simd level);

using Token = std::uint32_t;
using Tokens = std::span<const Token>;

enum class EditKind : std::uint8_t { same, replaced, deleted, inserted };

/// `length` consecutive events of one kind: from `a` on in the first sequence (not for inserted)
/// and from `b` on in the second (not for deleted). Positions from 0.
struct EditRun {
  EditKind kind = EditKind::same;
  std::uint32_t a = 0;
  std::uint32_t b = 0;
  std::uint32_t length = 0;
  bool operator==(const EditRun&) const = default;
};

/// The Levenshtein distance: fewest insertions, deletions and replacements, each costing 1. Exact
/// for every input. Time O(n + d^2) for close sequences, O(n d / 64) for distant ones; memory
/// O(n + m + k), k being the greatest token. Both sequences are shorter than 2^30.
std::uint32_t edit_distance(Tokens a, Tokens b, Simd level = best_simd());

/// How much work a script may be.
struct Effort {
  std::uint32_t most = ~0U;              ///< a distance above it need not be computed exactly
  std::function<void(double)> progress;  ///< called with the share done, if it takes long
};

struct Script {
  std::vector<EditRun> runs;  ///< they cover both sequences, in order
  bool exact = true;  ///< false: there may be a shorter one; it has more than effort.most edits
};

/// A shortest script; it has edit_distance() edits. About the time of edit_distance(), and up to 70
/// MB more memory.
Script edit_script(Tokens a, Tokens b, const Effort& effort = {}, Simd level = best_simd());

/// Scores of a local alignment. A gap of length L costs gap_open + (L - 1) * gap_extend.
struct Scores {
  std::int32_t match = 1;
  std::int32_t mismatch = 1;    ///< a cost, not negative, as the next two
  std::int32_t gap_open = 1;    ///< for the first event of a gap
  std::int32_t gap_extend = 1;  ///< for each further event
};

/// One stretch of each sequence, aligned. Half-open ranges, from 0.
struct LocalAlignment {
  std::int64_t score = 0;
  std::size_t a_begin = 0, a_end = 0;
  std::size_t b_begin = 0, b_end = 0;
  std::vector<EditRun> script;  ///< a shortest script of the two stretches
};

/// The best local alignments (Smith and Waterman 1981, affine gaps after Gotoh 1982), best first,
/// at most `count`. No two share an event of `a`. Among equals: the one that ends first in `a`,
/// then in `b`, and is shortest. Time O(n m) for each result, memory linear. Fails when the scores
/// are negative or could overflow.
Result<std::vector<LocalAlignment>> best_local_alignments(Tokens a, Tokens b, const Scores& scores,
                                                          std::size_t count,
                                                          Simd level = best_simd());

/// The best score and the first cell that has it, by row, then by column; from 0.
struct LocalEnd {
  std::int32_t score = 0;
  std::size_t a = 0;
  std::size_t b = 0;
  bool operator==(const LocalEnd&) const = default;
};
/// One pass over the whole table, linear memory. Public for tests and benchmarks.
LocalEnd local_end(Tokens a, Tokens b, const Scores& scores, Simd level = best_simd());

}  // namespace heddle::diff
