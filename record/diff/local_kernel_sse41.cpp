// SPDX-License-Identifier: MIT
// Compiled with -msse4.1: see diagonal_front_avx2.cpp.
#if defined(__x86_64__)
#include <smmintrin.h>

#include "record/diff/local_kernel_impl.hpp"

namespace heddle::diff {
namespace {

struct Sse41 {
  using Register = __m128i;
  static constexpr std::int64_t kLanes = 4;
  static Register load(const void* p) { return _mm_loadu_si128(static_cast<const __m128i*>(p)); }
  static void store(void* p, Register v) { _mm_storeu_si128(static_cast<__m128i*>(p), v); }
  static Register set1(std::int32_t x) { return _mm_set1_epi32(x); }
  static Register add(Register x, Register y) { return _mm_add_epi32(x, y); }
  static Register sub(Register x, Register y) { return _mm_sub_epi32(x, y); }
  static Register max(Register x, Register y) { return _mm_max_epi32(x, y); }
  static Register equal(Register x, Register y) { return _mm_cmpeq_epi32(x, y); }
  static Register greater(Register x, Register y) { return _mm_cmpgt_epi32(x, y); }
  static Register blend(Register no, Register yes, Register mask) {
    return _mm_blendv_epi8(no, yes, mask);
  }
  static Register load_first(const std::int32_t* p) { return _mm_cvtsi32_si128(*p); }
  static Register shift_in(Register v, Register w) {
    return _mm_blend_epi16(_mm_slli_si128(v, 4), w, 3);
  }
};

}  // namespace

LocalBest local_strips_sse41(const LocalStrips& strips) { return local_strips<Sse41>(strips); }

}  // namespace heddle::diff
#endif
