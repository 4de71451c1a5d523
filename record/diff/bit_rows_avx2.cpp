// SPDX-License-Identifier: MIT
// Compiled with -mavx2: see diagonal_front_avx2.cpp.
//
// Four blocks of 64 rows at once, one a lane. Blocks depend on one another only by the delta that
// leaves a block's last row, so lane l works on column t - l at step t and hands its delta down to
// lane l + 1 for the next step.
#if defined(__x86_64__)
#include <immintrin.h>

#include "record/diff/bit_rows.hpp"

namespace heddle::diff {
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

}  // namespace heddle::diff
#endif
