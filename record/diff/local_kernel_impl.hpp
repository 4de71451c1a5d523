// SPDX-License-Identifier: MIT
// The strips of local_kernel.hpp, written once for any vector of 32-bit lanes. Included by the
// files that are compiled for one instruction set each, so all is in an unnamed namespace.
//
// Lanes are rows. A step moves all of them along an anti-diagonal, lane l on column t - l, so
// nothing depends within the vector; but each step waits for the one before. So two strips are
// worked on in turn, the lower one kLag steps behind the upper, which fills those waits (AVX2,
// measured: 3.4e9 cells a second against 2.5e9).
//
// Arrays run backwards. A step can then store its whole vector with the last lane on its column,
// the only one that is final: what the other lanes leave lies on columns to their right, which have
// been read by now and are yet to be stored. Columns beyond the last hold tokens that match
// nothing, so no cell there is greater than the best so far.
#pragma once

#include "record/diff/local_kernel.hpp"

namespace heddle::diff {
namespace {

/// V: load, store, load_first(p): *p into lane 0, set1, add, sub, max, equal, greater,
/// blend(no, yes, mask), shift_in(v, w): v's lanes one down and w's lane 0 into lane 0.
template <class V>
class LocalStrip {
 public:
  using R = typename V::Register;
  static constexpr std::int64_t kLanes = V::kLanes;

  LocalStrip(const LocalStrips& s, const Token* rows)
      : rows_(V::load(rows)),
        score_(V::set1(0)),
        diagonal_(V::set1(0)),
        right_(V::set1(-s.scores.gap_open)),
        below_(V::set1(-s.scores.gap_open)),
        best_(V::set1(s.to_beat)),
        best_step_(V::set1(0)),
        match_(V::set1(s.scores.match)),
        mismatch_(V::set1(-s.scores.mismatch)),
        open_(V::set1(s.scores.gap_open)),
        extend_(V::set1(s.scores.gap_extend)) {}

  void step(const LocalStrips& s, std::int64_t t) {
    const std::int64_t first = s.m - 1 - t;  // of column t, lane 0's
    const R gained = V::blend(mismatch_, match_, V::equal(rows_, V::load(s.columns + first)));
    const R above = V::shift_in(score_, V::load_first(s.score + first));
    const R vertical = V::shift_in(below_, V::load_first(s.down + first));
    const R here = V::max(V::max(V::add(diagonal_, gained), V::set1(0)), V::max(right_, vertical));
    diagonal_ = above;
    score_ = here;
    const R opened = V::sub(here, open_);
    right_ = V::max(V::sub(right_, extend_), opened);
    below_ = V::max(V::sub(vertical, extend_), opened);
    const R better = V::greater(here, best_);
    best_ = V::max(best_, here);
    best_step_ = V::blend(best_step_, V::set1(static_cast<std::int32_t>(t)), better);
    V::store(s.score + first, score_);
    V::store(s.down + first, below_);
  }
  /// Takes the best of these rows into `best` where it is greater; they start at row `row`.
  void collect(LocalBest& best, std::int32_t& top, std::int32_t row) const {
    std::int32_t scores[kLanes], at[kLanes];
    V::store(scores, best_);
    V::store(at, best_step_);
    for (std::int32_t lane = 0; lane < kLanes; ++lane) {
      if (scores[lane] <= top) continue;
      top = scores[lane];
      best = {top, row + lane, at[lane] - lane};
    }
  }

 private:
  R rows_;
  R score_;     // of the cell to the left
  R diagonal_;  // of the cell up and to the left
  R right_;     // horizontal gap that enters this cell
  R below_;     // vertical gap that leaves it
  R best_;
  R best_step_;  // when best_ was met
  R match_, mismatch_, open_, extend_;
};

template <class V>
LocalBest local_strips(const LocalStrips& s) {
  constexpr std::int64_t kLanes = V::kLanes;
  constexpr std::int64_t kLag = kLanes;  // one step after the upper strip's column is final
  LocalStrip<V> upper(s, s.rows);
  LocalStrip<V> lower(s, s.rows + kLanes);
  const std::int64_t steps = s.m + kLanes - 1;
  std::int64_t t = 0;
  for (; t < kLag && t < steps; ++t) upper.step(s, t);
  for (; t < steps; ++t) {
    upper.step(s, t);
    lower.step(s, t - kLag);
  }
  for (t = steps < kLag ? 0 : steps - kLag; t < steps; ++t) lower.step(s, t);
  LocalBest best;
  std::int32_t top = s.to_beat;
  upper.collect(best, top, 0);
  lower.collect(best, top, static_cast<std::int32_t>(kLanes));
  return best;
}

}  // namespace
}  // namespace heddle::diff
