// SPDX-License-Identifier: MIT
#include "record/diff/simd.hpp"

namespace heddle::diff {

Simd best_simd() {
#if defined(__x86_64__)
  // GCC manual, "x86 Built-in Functions": these also ask the OS for the registers' state (xgetbv).
  static const Simd best = __builtin_cpu_supports("avx2")     ? Simd::avx2
                           : __builtin_cpu_supports("sse4.1") ? Simd::sse41
                                                              : Simd::scalar;
  return best;
#else
  return Simd::scalar;
#endif
}

std::vector<Simd> simd_levels() {
  std::vector<Simd> levels{Simd::scalar};
  if (best_simd() >= Simd::sse41) levels.push_back(Simd::sse41);
  if (best_simd() >= Simd::avx2) levels.push_back(Simd::avx2);
  return levels;
}

std::string_view simd_name(Simd level) {
  switch (level) {
    case Simd::scalar:
      return "scalar";
    case Simd::sse41:
      return "SSE4.1";
    case Simd::avx2:
      return "AVX2";
  }
  return "";
}

}  // namespace heddle::diff
