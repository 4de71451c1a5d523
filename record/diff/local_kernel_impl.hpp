// SPDX-License-Identifier: MIT
// The strip of local_kernel.hpp, written once for any vector of 32-bit lanes. Included by the files
// that are compiled for one instruction set each, so all is in an unnamed namespace.
#pragma once

#include "record/diff/local_kernel.hpp"

namespace heddle::diff {
namespace {

/// V: load, store, set1, add, sub, max, equal, greater, blend(no, yes, mask), any(mask),
/// shift_in(v, x): lanes one down and x into lane 0; last(v).
///
/// Lanes are rows, a step moves all of them along an anti-diagonal, so nothing depends within the
/// vector. Before its first column a lane holds zeros, which is the border's value; behind its last
/// it meets tokens that match nothing, so that nothing there is greater than what it had.
template <class V>
LocalBest local_strip(const LocalStrip& s) {
  using R = typename V::Register;
  constexpr std::int64_t kLanes = V::kLanes;
  const R zero = V::set1(0);
  const R match = V::set1(s.scores.match);
  const R mismatch = V::set1(-s.scores.mismatch);
  const R open = V::set1(s.scores.gap_open);
  const R extend = V::set1(s.scores.gap_extend);
  const R rows = V::load(s.rows);
  R score = zero;                         // of the cell to the left
  R diagonal = zero;                      // of the cell up and to the left
  R right = V::set1(-s.scores.gap_open);  // horizontal gap that enters this cell
  R below = V::set1(-s.scores.gap_open);  // vertical gap that leaves it
  R best = V::set1(s.to_beat);
  R best_step = zero;
  const std::int64_t steps = s.m + kLanes - 1;
  for (std::int64_t t = 0; t < steps; ++t) {
    const bool inside = t < s.m;
    const R columns = V::load(s.reversed_columns + (s.m - 1 - t) + (kLanes - 1));
    const R gained = V::blend(mismatch, match, V::equal(rows, columns));
    const R above = V::shift_in(score, inside ? s.score[t] : 0);
    const R vertical = V::shift_in(below, inside ? s.down[t] : -s.scores.gap_open);
    const R here = V::max(V::max(V::add(diagonal, gained), zero), V::max(right, vertical));
    diagonal = above;
    score = here;
    const R opened = V::sub(here, open);
    right = V::max(V::sub(right, extend), opened);
    below = V::max(V::sub(vertical, extend), opened);
    const R better = V::greater(here, best);
    best = V::max(best, here);
    best_step = V::blend(best_step, V::set1(static_cast<std::int32_t>(t)), better);
    if (t >= kLanes - 1) {
      s.score[t - (kLanes - 1)] = V::last(score);
      s.down[t - (kLanes - 1)] = V::last(below);
    }
  }
  std::int32_t scores[kLanes], at[kLanes];
  V::store(scores, best);
  V::store(at, best_step);
  LocalBest result;
  std::int32_t top = s.to_beat;
  for (std::int32_t lane = 0; lane < kLanes; ++lane) {
    if (scores[lane] <= top) continue;
    top = scores[lane];
    result = {top, lane, at[lane] - lane};
  }
  return result;
}

}  // namespace
}  // namespace heddle::diff
