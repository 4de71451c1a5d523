// SPDX-License-Identifier: MIT
// Compiled with -mavx2: see diagonal_front_avx2.cpp.
#if defined(__x86_64__)
#include <immintrin.h>

#include "record/diff/local_kernel_impl.hpp"

namespace heddle::diff {
namespace {

struct Avx2 {
  using Register = __m256i;
  static constexpr std::int64_t kLanes = 8;
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

}  // namespace

LocalBest local_strips_avx2(const LocalStrips& strips) { return local_strips<Avx2>(strips); }

}  // namespace heddle::diff
#endif
