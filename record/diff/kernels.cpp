// SPDX-License-Identifier: MIT
// Compiled twice: for any CPU, and with -mavx2 for CPUs that have AVX2. Only vectors (GCC manual,
// "Vector Extensions") and functions of this file are used: an inline function of a header could
// carry AVX2 code into other units.
#include "record/diff/kernels.hpp"

#if defined(__AVX2__)
#include <immintrin.h>
#endif

namespace heddle::diff {
namespace {

using Int8 = std::int32_t __attribute__((vector_size(32)));
using Uint4 = std::uint64_t __attribute__((vector_size(32)));
constexpr std::int32_t kLanes = kLocalLanes;  // of an Int8

template <class T>
Int8 load(const T* p) {
  Int8 out;
  __builtin_memcpy(&out, p, sizeof(out));
  return out;
}
void store(std::int32_t* p, Int8 v) { __builtin_memcpy(p, &v, sizeof(v)); }
Int8 all(std::int32_t x) { return Int8{} + x; }
auto smaller(auto x, auto y) { return x < y ? x : y; }
auto greater(auto x, auto y) { return x > y ? x : y; }

/// One bit for each lane of a mask.
unsigned bits_of(Int8 mask) {
#if defined(__AVX2__)
  return static_cast<unsigned>(_mm256_movemask_ps(reinterpret_cast<__m256>(mask)));
#else
  unsigned bits = 0;
  const auto words = reinterpret_cast<Uint4>(mask);
  if ((words[0] | words[1] | words[2] | words[3]) == 0) return 0;
  for (int lane = 0; lane < kLanes; ++lane)
    bits |= (static_cast<unsigned>(mask[lane]) & 1U) << lane;
  return bits;
#endif
}

#if defined(__AVX2__)
/// The tokens at indices `at`, in the lanes where `mask` is set.
Int8 gather(const Token* tokens, Int8 at, Int8 mask) {
  const auto places = reinterpret_cast<__m256i>(at);
  return reinterpret_cast<Int8>(
      _mm256_mask_i32gather_epi32(_mm256_setzero_si256(), reinterpret_cast<const int*>(tokens),
                                  places, reinterpret_cast<__m256i>(mask), 4));
}
#endif

/// Follows equal tokens on diagonal k from `i` on. Backward, i counts from the end, and diagonal k
/// is m - n - k.
template <bool backward>
void slide(const FrontStep& s, std::int32_t k, std::int32_t i) {
  const std::int32_t end = smaller(s.n, backward ? s.n + k : s.m - k);
  const Token* a = backward ? s.a - i - 1 : s.a + i;
  const Token* b = backward ? s.b - i - (s.m - s.n - k) - 1 : s.b + i + k;
  for (constexpr int kNext = backward ? -1 : 1; i < end && *a == *b; ++i) a += kNext, b += kNext;
  s.now[k] = i;
}

/// Eight diagonals at a time. On most diagonals the first tokens differ, so one gathered comparison
/// decides for all; lanes with equal tokens go on one by one.
template <bool backward>
void step(const FrontStep& s) {
  constexpr std::int32_t kStay = backward ? 1 : -1, kMove = -kStay;
  std::int32_t k = s.lo;
#if defined(__AVX2__)
  for (; k + kLanes - 1 <= s.hi; k += kLanes) {
    const Int8 diagonal = all(k) + Int8{0, 1, 2, 3, 4, 5, 6, 7};
    const Int8 end = smaller(all(s.n), backward ? s.n + diagonal : s.m - diagonal);
    const Int8 edited = greater(load(s.old + k), load(s.old + k + kMove)) + 1;
    const Int8 i = smaller(greater(edited, load(s.old + k + kStay)), end);
    const Int8 inside = end > i;
    const Int8 at_a = backward ? -1 - i : i;
    const Int8 at_b = backward ? diagonal - i - (s.m - s.n + 1) : i + diagonal;
    const Int8 same = inside & (gather(s.a, at_a, inside) == gather(s.b, at_b, inside));
    store(s.now + k, i);
    for (unsigned equal = bits_of(same); equal != 0; equal &= equal - 1) {
      const std::int32_t on = k + __builtin_ctz(equal);
      slide<backward>(s, on, s.now[on] + 1);
    }
  }
#endif
  for (; k <= s.hi; ++k) {
    const std::int32_t edited = greater(s.old[k], s.old[k + kMove]) + 1;
    const std::int32_t end = smaller(s.n, backward ? s.n + k : s.m - k);
    slide<backward>(s, k, smaller(greater(edited, s.old[k + kStay]), end));
  }
}

std::int32_t find_meeting(const std::int32_t* f, const std::int32_t* g, std::int32_t lo,
                          std::int32_t hi, std::int32_t n) {
  for (; lo + kLanes - 1 <= hi; lo += kLanes)
    if (const unsigned met = bits_of(load(f + lo) + load(g + lo) >= n); met != 0)
      return lo + __builtin_ctz(met);
  while (lo <= hi && f[lo] + g[lo] < n) ++lo;
  return lo;
}

// Eight blocks of 64 rows at once, each a lane. A block needs of the one above only the delta of
// its last row, so lane l works on column t - l at step t and passes its delta to lane l + 1 for
// the next step; the lanes of a step are independent. A lane before its first column has a token
// without rows and a delta of 0, which leave its state unchanged; what it computes beyond the last
// column is not used.

/// One block in each lane of a Word.
template <class Word>
struct Blocks {
  Word plus = ~Word{};       // rows one above their upper neighbour
  Word minus{};              // rows one below it
  Word h_plus{}, h_minus{};  // of the last column: rows one above, or below, their left neighbour

  void step(Word eq, Word in_plus, Word in_minus) {
    const Word vertical = eq | minus;
    eq |= in_minus;
    const Word diagonal = (((eq & plus) + plus) ^ plus) | eq;
    h_plus = minus | ~(diagonal | plus);
    h_minus = plus & diagonal;
    const Word left_plus = h_plus << 1 | in_plus;
    const Word left_minus = h_minus << 1 | in_minus;
    plus = left_minus | ~(vertical | left_plus);
    minus = left_plus & vertical;
  }
  Word change(int bit) const { return (h_plus >> bit & 1) - (h_minus >> bit & 1); }
};

#if defined(__AVX2__)
class Strip {
 public:
  /// `delta`: of the row above the first.
  template <class Rows>
  void step(const Rows& rows, int delta) {
    const Uint4 out_plus[] = {upper_.h_plus >> 63, lower_.h_plus >> 63};
    const Uint4 out_minus[] = {upper_.h_minus >> 63, lower_.h_minus >> 63};
    upper_.step(Uint4{rows(0), rows(1), rows(2), rows(3)},
                __builtin_shufflevector(out_plus[0], Uint4{delta > 0}, 4, 0, 1, 2),
                __builtin_shufflevector(out_minus[0], Uint4{delta < 0}, 4, 0, 1, 2));
    lower_.step(Uint4{rows(4), rows(5), rows(6), rows(7)},
                __builtin_shufflevector(out_plus[0], out_plus[1], 3, 4, 5, 6),
                __builtin_shufflevector(out_minus[0], out_minus[1], 3, 4, 5, 6));
  }
  /// Of one row in the column that its lane is on.
  std::uint64_t change(int lane, int bit) const {
    return (lane < 4 ? upper_ : lower_).change(bit)[lane % 4];
  }

 private:
  Blocks<Uint4> upper_, lower_;
};
#else
// Without AVX2, single words are three times as fast as vectors of them (measured).
class Strip {
 public:
  template <class Rows>
  void step(const Rows& rows, int delta) {
    for (int lane = 7; lane > 0; --lane)
      blocks_[lane].step(rows(lane), blocks_[lane - 1].h_plus >> 63,
                         blocks_[lane - 1].h_minus >> 63);
    blocks_[0].step(rows(0), delta > 0, delta < 0);
  }
  std::uint64_t change(int lane, int bit) const { return blocks_[lane].change(bit); }

 private:
  Blocks<std::uint64_t> blocks_[8];
};
#endif

/// `whole`: the last row is that of lane 7.
template <bool whole>
void bit_strip(const BitStrip& s) {
  const int lane = whole ? 7 : s.last_row / 64;
  const int bit = whole ? 63 : s.last_row % 64;
  const std::uint16_t* column = s.columns;
  const std::uint64_t* const rows_with = s.rows_with;
  std::int8_t* const deltas = s.delta;
  const std::int64_t m = s.m;
  Strip strip;
  for (std::int64_t t = 0; t < m + lane; ++t, ++column) {
    const auto rows = [&](int l) {
      return rows_with[column[-l] * std::size_t{kBlocks} + static_cast<std::size_t>(l)];
    };
    strip.step(rows, t < m ? deltas[t] : 0);
    if (t >= lane) deltas[t - lane] = static_cast<std::int8_t>(strip.change(lane, bit));
  }
}

void any_bit_strip(const BitStrip& s) {
  s.last_row == kStripRows - 1 ? bit_strip<true>(s) : bit_strip<false>(s);
}

// Lanes are rows, and step t has lane l on column t - l, so lanes do not depend on one another. As
// each step depends on the one before, two strips alternate, the lower one kLag steps behind the
// upper (AVX2, measured: 3.4e9 cells a second against 2.5e9).
//
// Arrays run backwards. A step can then store its whole vector with the last lane on its column;
// only that lane is final. The other lanes overwrite columns to its right, which have been read and
// will be stored again. Columns beyond the last hold tokens that match nothing, so no cell there
// exceeds the best so far.
class LocalStrip {
 public:
  LocalStrip(const LocalStrips& s, const Token* rows)
      : rows_(load(rows)),
        right_(all(-s.scores.gap_open)),
        below_(right_),
        best_(all(s.to_beat)),
        match_(all(s.scores.match)),
        mismatch_(all(-s.scores.mismatch)),
        open_(all(s.scores.gap_open)),
        extend_(all(s.scores.gap_extend)) {}

  void step(const LocalStrips& s, std::int64_t t) {
    const std::int64_t first = s.m - 1 - t;  // of column t, lane 0's
    const Int8 gained = rows_ == load(s.columns + first) ? match_ : mismatch_;
    const Int8 above = shift_in(score_, s.score[first]);
    const Int8 vertical = shift_in(below_, s.down[first]);
    const Int8 here = greater(greater(diagonal_ + gained, Int8{}), greater(right_, vertical));
    diagonal_ = above;
    score_ = here;
    const Int8 opened = here - open_;
    right_ = greater(right_ - extend_, opened);
    below_ = greater(vertical - extend_, opened);
    best_step_ = here > best_ ? all(static_cast<std::int32_t>(t)) : best_step_;
    best_ = greater(best_, here);
    store(s.score + first, score_);
    store(s.down + first, below_);
  }
  /// Updates `best` and `top` with the best cell of these rows, which start at row `row`.
  void collect(LocalBest& best, std::int32_t& top, std::int32_t row) const {
    for (std::int32_t lane = 0; lane < kLanes; ++lane) {
      if (best_[lane] <= top) continue;
      top = best_[lane];
      best = {top, row + lane, best_step_[lane] - lane};
    }
  }

 private:
  static Int8 shift_in(Int8 v, std::int32_t first) {
    return __builtin_shufflevector(v, Int8{first}, 8, 0, 1, 2, 3, 4, 5, 6);
  }
  Int8 rows_;
  Int8 score_{};     // of the cell to the left
  Int8 diagonal_{};  // of the cell up and to the left
  Int8 right_;       // horizontal gap that enters this cell
  Int8 below_;       // vertical gap that leaves it
  Int8 best_;
  Int8 best_step_{};  // the step of best_
  Int8 match_, mismatch_, open_, extend_;
};

LocalBest local_strips(const LocalStrips& s) {
  constexpr std::int64_t kLag = kLanes;  // one step after the upper strip's column is final
  LocalStrip upper(s, s.rows);
  LocalStrip lower(s, s.rows + kLanes);
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

#if defined(__AVX2__)
const Kernels kAvx2Kernels
#else
const Kernels kPortableKernels
#endif
    = {any_bit_strip, step<false>, step<true>, find_meeting, local_strips};

}  // namespace heddle::diff
