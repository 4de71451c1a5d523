// SPDX-License-Identifier: MIT
// Compiled with -mavx2 and called only where the CPU has it: nothing here may be inline elsewhere,
// so no standard algorithms, only intrinsics and this file's own functions.
#if defined(__x86_64__)
#include <immintrin.h>

#include "record/diff/diagonal_front.hpp"

namespace heddle::diff {
namespace {

constexpr std::int32_t kLanes = 8;

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

}  // namespace heddle::diff
#endif
