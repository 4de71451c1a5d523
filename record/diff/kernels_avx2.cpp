// SPDX-License-Identifier: MIT
// Compiled with -mavx2 and called only where the CPU has it. An inline function that other units
// share would carry AVX2 code into them: so no standard algorithms, only intrinsics and functions
// of this file.
#if defined(__x86_64__)
#include <immintrin.h>

#include "record/diff/kernels.hpp"

namespace heddle::diff {
namespace {

constexpr std::int32_t kLanes = kLocalLanes;  // of 32 bits

__m256i load(const std::int32_t* p) {
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
}

/// Equal tokens from `a`, `b` on, at most `limit`; upwards or, from one past, downwards.
template <bool backward>
std::int32_t equal_run(const Token* a, const Token* b, std::int32_t limit) {
  std::int32_t n = 0;
  for (; n + kLanes <= limit; n += kLanes) {
    const std::int32_t at = backward ? -n - kLanes : n;
    const __m256i same = _mm256_cmpeq_epi32(load(reinterpret_cast<const std::int32_t*>(a + at)),
                                            load(reinterpret_cast<const std::int32_t*>(b + at)));
    const auto differ =
        ~static_cast<unsigned>(_mm256_movemask_ps(_mm256_castsi256_ps(same))) & 0xFF;
    if (differ != 0) return n + (backward ? __builtin_clz(differ) - 24 : __builtin_ctz(differ));
  }
  while (n < limit && a[backward ? -1 - n : n] == b[backward ? -1 - n : n]) ++n;
  return n;
}

std::int32_t smaller(std::int32_t x, std::int32_t y) { return x < y ? x : y; }
std::int32_t greater(std::int32_t x, std::int32_t y) { return x > y ? x : y; }

template <bool backward>
void step_one(const FrontStep& s, std::int32_t k) {
  const std::int32_t stay = s.old[backward ? k + 1 : k - 1];
  const std::int32_t move = s.old[backward ? k - 1 : k + 1];
  const std::int32_t end = smaller(s.n, backward ? s.n + k : s.m - k);
  const std::int32_t i = smaller(greater(greater(s.old[k], move) + 1, stay), end);
  const Token* a = backward ? s.a - i : s.a + i;
  const Token* b = backward ? s.b - i - (s.m - s.n - k) : s.b + i + k;
  s.now[k] = i + equal_run<backward>(a, b, end - i);
}

/// Eight diagonals from k on. Off the path of few edits, tokens differ at once: so one gathered
/// comparison decides for all, and only the lanes that are equal go on, one by one.
template <bool backward>
void step_eight(const FrontStep& s, std::int32_t k, __m256i lane) {
  const __m256i one = _mm256_set1_epi32(1);
  const __m256i stay = load(s.old + (backward ? k + 1 : k - 1));
  const __m256i move = load(s.old + (backward ? k - 1 : k + 1));
  const __m256i diagonal = _mm256_add_epi32(_mm256_set1_epi32(k), lane);
  const __m256i far_side = backward ? _mm256_add_epi32(_mm256_set1_epi32(s.n), diagonal)
                                    : _mm256_sub_epi32(_mm256_set1_epi32(s.m), diagonal);
  const __m256i end = _mm256_min_epi32(_mm256_set1_epi32(s.n), far_side);
  __m256i i = _mm256_add_epi32(_mm256_max_epi32(load(s.old + k), move), one);
  i = _mm256_min_epi32(_mm256_max_epi32(i, stay), end);
  // Where a lane stands at its end, its index is moved onto a token that exists and masked out.
  const __m256i inside = _mm256_cmpgt_epi32(end, i);
  __m256i at_a = i;
  __m256i at_b = _mm256_add_epi32(i, diagonal);
  if (backward) {
    at_a = _mm256_sub_epi32(_mm256_set1_epi32(-1), i);
    at_b = _mm256_sub_epi32(_mm256_sub_epi32(diagonal, i), _mm256_set1_epi32(s.m - s.n + 1));
  }
  const __m256i zero = _mm256_setzero_si256();
  const __m256i token_a =
      _mm256_mask_i32gather_epi32(zero, reinterpret_cast<const int*>(s.a), at_a, inside, 4);
  const __m256i token_b =
      _mm256_mask_i32gather_epi32(zero, reinterpret_cast<const int*>(s.b), at_b, inside, 4);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(s.now + k), i);
  const __m256i same = _mm256_and_si256(inside, _mm256_cmpeq_epi32(token_a, token_b));
  auto equal = static_cast<unsigned>(_mm256_movemask_ps(_mm256_castsi256_ps(same)));
  for (; equal != 0; equal &= equal - 1) {
    const std::int32_t at = k + __builtin_ctz(equal);
    const std::int32_t from = s.now[at];
    const std::int32_t stop = smaller(s.n, backward ? s.n + at : s.m - at);
    const Token* a = backward ? s.a - from : s.a + from;
    const Token* b = backward ? s.b - from - (s.m - s.n - at) : s.b + from + at;
    s.now[at] = from + equal_run<backward>(a, b, stop - from);
  }
}

template <bool backward>
void step(const FrontStep& s) {
  const __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
  std::int32_t k = s.lo;
  for (; k + kLanes - 1 <= s.hi; k += kLanes) step_eight<backward>(s, k, lane);
  for (; k <= s.hi; ++k) step_one<backward>(s, k);
}

}  // namespace

void step_forward_avx2(const FrontStep& s) { step<false>(s); }
void step_backward_avx2(const FrontStep& s) { step<true>(s); }

std::int32_t find_meeting_avx2(const std::int32_t* f, const std::int32_t* g, std::int32_t lo,
                               std::int32_t hi, std::int32_t n) {
  const __m256i below = _mm256_set1_epi32(n - 1);
  for (; lo + kLanes - 1 <= hi; lo += kLanes) {
    const __m256i sum = _mm256_add_epi32(load(f + lo), load(g + lo));
    const int met = _mm256_movemask_ps(_mm256_castsi256_ps(_mm256_cmpgt_epi32(sum, below)));
    if (met != 0) return lo + __builtin_ctz(static_cast<unsigned>(met));
  }
  while (lo <= hi && f[lo] + g[lo] < n) ++lo;
  return lo;
}

// Four blocks of 64 rows at once, one a lane. Blocks depend on one another only by the delta that
// leaves a block's last row, so lane l works on column t - l at step t and hands its delta down to
// lane l + 1 for the next step.

namespace {

struct State {
  __m256i plus = _mm256_set1_epi64x(-1);
  __m256i minus = _mm256_setzero_si256();
  __m256i tokens = _mm256_setzero_si256();    // of the column each lane is on
  __m256i out_plus = _mm256_setzero_si256();  // 1 where the lane's delta is +1
  __m256i out_minus = _mm256_setzero_si256();
};

/// Lanes one down, `first` into lane 0.
__m256i shift_in(__m256i v, long long first) {
  const __m256i moved = _mm256_permute4x64_epi64(v, _MM_SHUFFLE(2, 1, 0, 0));
  return _mm256_blend_epi32(moved, _mm256_castsi128_si256(_mm_cvtsi64_si128(first)), 0x03);
}

/// `active`: lanes that are on a column; the others keep their state (ramp only).
template <bool ramp>
void step(State& s, const BitStrip& strip, long long token, int delta, __m256i active) {
  const __m256i lane = _mm256_setr_epi64x(0, 1, 2, 3);
  const __m256i ones = _mm256_set1_epi64x(-1);
  s.tokens = shift_in(s.tokens, token);
  const __m256i in_plus = shift_in(s.out_plus, delta > 0);
  const __m256i in_minus = shift_in(s.out_minus, delta < 0);
  const __m256i index = _mm256_add_epi64(_mm256_slli_epi64(s.tokens, 2), lane);
  __m256i eq =
      _mm256_i64gather_epi64(reinterpret_cast<const long long*>(strip.rows_with), index, 8);
  const __m256i vertical = _mm256_or_si256(eq, s.minus);
  eq = _mm256_or_si256(eq, in_minus);
  const __m256i sum = _mm256_add_epi64(_mm256_and_si256(eq, s.plus), s.plus);
  const __m256i diagonal = _mm256_or_si256(_mm256_xor_si256(sum, s.plus), eq);
  __m256i h_plus =
      _mm256_or_si256(s.minus, _mm256_andnot_si256(_mm256_or_si256(diagonal, s.plus), ones));
  __m256i h_minus = _mm256_and_si256(s.plus, diagonal);
  s.out_plus = _mm256_srli_epi64(h_plus, 63);
  s.out_minus = _mm256_srli_epi64(h_minus, 63);
  h_plus = _mm256_or_si256(_mm256_slli_epi64(h_plus, 1), in_plus);
  h_minus = _mm256_or_si256(_mm256_slli_epi64(h_minus, 1), in_minus);
  const __m256i plus =
      _mm256_or_si256(h_minus, _mm256_andnot_si256(_mm256_or_si256(vertical, h_plus), ones));
  const __m256i minus = _mm256_and_si256(h_plus, vertical);
  s.plus = ramp ? _mm256_blendv_epi8(s.plus, plus, active) : plus;
  s.minus = ramp ? _mm256_blendv_epi8(s.minus, minus, active) : minus;
}

/// What left the lowest lane.
std::int8_t lowest_delta(const State& s) {
  const __m256i out = _mm256_sub_epi64(s.out_plus, s.out_minus);
  return static_cast<std::int8_t>(_mm256_extract_epi32(out, 6));
}

}  // namespace

void bit_strip_avx2(const BitStrip& strip) {
  State s;
  const __m256i lane = _mm256_setr_epi64x(0, 1, 2, 3);
  std::int64_t t = 0;
  for (; t < 3; ++t)
    step<true>(s, strip, strip.columns[t], strip.delta[t],
               _mm256_cmpgt_epi64(_mm256_set1_epi64x(t + 1), lane));
  for (; t < strip.m; ++t) {
    step<false>(s, strip, strip.columns[t], strip.delta[t], lane);
    strip.delta[t - 3] = lowest_delta(s);
  }
  // Lanes run out one by one; what they compute beyond the last column reaches no lane that counts.
  for (; t < strip.m + 3; ++t) {
    step<false>(s, strip, 0, 0, lane);
    strip.delta[t - 3] = lowest_delta(s);
  }
}

// Lanes are rows. A step moves all of them along an anti-diagonal, lane l on column t - l, so
// nothing depends within the vector; but each step waits for the one before. So two strips are
// worked on in turn, the lower one kLag steps behind the upper, which fills those waits (AVX2,
// measured: 3.4e9 cells a second against 2.5e9).
//
// Arrays run backwards. A step can then store its whole vector with the last lane on its column,
// the only one that is final: what the other lanes leave lies on columns to their right, which have
// been read by now and are yet to be stored. Columns beyond the last hold tokens that match
// nothing, so no cell there is greater than the best so far.

namespace {

/// Eight lanes of 32 bits. shift_in(v, w): the lanes of v one down, and lane 0 of w.
struct V {
  using Register = __m256i;
  static Register load(const void* p) { return _mm256_loadu_si256(static_cast<const __m256i*>(p)); }
  static void store(void* p, Register v) { _mm256_storeu_si256(static_cast<__m256i*>(p), v); }
  static Register set1(std::int32_t x) { return _mm256_set1_epi32(x); }
  static Register add(Register x, Register y) { return _mm256_add_epi32(x, y); }
  static Register sub(Register x, Register y) { return _mm256_sub_epi32(x, y); }
  static Register max(Register x, Register y) { return _mm256_max_epi32(x, y); }
  static Register equal(Register x, Register y) { return _mm256_cmpeq_epi32(x, y); }
  static Register greater(Register x, Register y) { return _mm256_cmpgt_epi32(x, y); }
  static Register blend(Register no, Register yes, Register mask) {
    return _mm256_blendv_epi8(no, yes, mask);
  }
  static Register load_first(const std::int32_t* p) {
    return _mm256_castsi128_si256(_mm_cvtsi32_si128(*p));
  }
  static Register shift_in(Register v, Register w) {
    const __m256i moved = _mm256_permutevar8x32_epi32(v, _mm256_setr_epi32(0, 0, 1, 2, 3, 4, 5, 6));
    return _mm256_blend_epi32(moved, w, 1);
  }
};

class LocalStrip {
 public:
  using R = V::Register;

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

}  // namespace

LocalBest local_strips_avx2(const LocalStrips& s) {
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

}  // namespace heddle::diff
#endif
