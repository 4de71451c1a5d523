// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "record/diff/simd.hpp"

namespace heddle::diff {

using Token = std::uint32_t;
using Tokens = std::span<const Token>;

enum class EditKind : std::uint8_t { same, replaced, deleted, inserted };

/// `length` events in a row with one fate: from `a` on in the first sequence (not for inserted) and
/// from `b` on in the second (not for deleted). Positions from 0.
struct EditRun {
  EditKind kind = EditKind::same;
  std::uint32_t a = 0;
  std::uint32_t b = 0;
  std::uint32_t length = 0;
  bool operator==(const EditRun&) const = default;
};

/// The Levenshtein distance: fewest insertions, deletions and replacements, each costing 1. Exact
/// for every input. Time O(n + d^2) for close sequences, O(n m / 64) for distant ones; memory O(n +
/// m). Tokens may have any value. Both sequences are shorter than 2^30.
std::uint32_t edit_distance(Tokens a, Tokens b, Simd level = best_simd());

/// A shortest script, in order, covering both sequences; its edits add up to edit_distance(). The
/// same time, doubled, and the same memory.
std::vector<EditRun> edit_script(Tokens a, Tokens b, Simd level = best_simd());

/// Edits in a script: what is not `same`.
std::uint32_t count_edits(const std::vector<EditRun>& script);

}  // namespace heddle::diff
