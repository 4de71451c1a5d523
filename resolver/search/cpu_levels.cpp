// SPDX-License-Identifier: MIT
#include "resolver/search/cpu_levels.hpp"

#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace heddle {

#if defined(__x86_64__)

namespace {

struct Registers {
  unsigned a = 0, b = 0, c = 0, d = 0;
};

Registers cpuid(unsigned leaf, unsigned sub = 0) {
  Registers r;
  if (__get_cpuid_count(leaf, sub, &r.a, &r.b, &r.c, &r.d) == 0) return {};
  return r;
}

bool all(unsigned value, unsigned bits) { return (value & bits) == bits; }

unsigned xcr0() {
  unsigned low = 0;
  unsigned high = 0;
  asm volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return low;
}

}  // namespace

CpuLevels read_cpu_levels() {
  constexpr unsigned kYmm = 0x6;   // XMM and YMM state
  constexpr unsigned kZmm = 0xE0;  // opmask, ZMM0-15, ZMM16-31
  constexpr unsigned kAvx512Pf = 1U << 26;
  constexpr unsigned kAvx512Er = 1U << 27;
  const auto one = cpuid(1);
  const auto seven = cpuid(7);
  const auto extended = cpuid(0x80000001);
  const unsigned state = all(one.c, bit_OSXSAVE) ? xcr0() : 0;
  const bool avx_usable = all(state, kYmm) && all(one.c, bit_AVX);
  const bool avx512_usable = all(state, kYmm | kZmm) && all(seven.b, bit_AVX512F);

  CpuLevels levels;
  const bool baseline =
      all(one.d, bit_CMOV | bit_CMPXCHG8B | bit_FXSAVE | bit_MMX | bit_SSE | bit_SSE2);
  const bool v2 =
      baseline && all(extended.c, bit_LAHF_LM) &&
      all(one.c, bit_CMPXCHG16B | bit_POPCNT | bit_SSE3 | bit_SSSE3 | bit_SSE4_1 | bit_SSE4_2);
  const bool avx2_set = avx_usable && all(seven.b, bit_AVX2 | bit_BMI | bit_BMI2) &&
                        all(one.c, bit_FMA | bit_MOVBE) && all(extended.c, bit_LZCNT);
  const bool v3 = v2 && avx2_set && all(one.c, bit_F16C);
  const bool v4 = v3 && avx512_usable &&
                  all(seven.b, bit_AVX512BW | bit_AVX512CD | bit_AVX512DQ | bit_AVX512VL);
  levels.isa_levels = (baseline ? 1U : 0U) | (v2 ? 2U : 0U) | (v3 ? 4U : 0U) | (v4 ? 8U : 0U);

  unsigned top = 0;
  unsigned vendor_b = 0;
  unsigned vendor_c = 0;
  unsigned vendor_d = 0;
  __get_cpuid(0, &top, &vendor_b, &vendor_c, &vendor_d);
  const bool intel = vendor_b == signature_INTEL_ebx && vendor_c == signature_INTEL_ecx &&
                     vendor_d == signature_INTEL_edx;
  if (intel) {
    const bool cd = avx512_usable && all(seven.b, bit_AVX512CD);
    if (cd && all(seven.b, kAvx512Er))
      levels.xeon_phi = all(seven.b, kAvx512Pf);
    else if (cd)
      levels.avx512_1 = all(seven.b, bit_AVX512BW | bit_AVX512DQ | bit_AVX512VL);
    levels.haswell = !levels.xeon_phi && avx2_set && all(one.c, bit_POPCNT);
  }
  return levels;
}

#else

CpuLevels read_cpu_levels() { return {}; }

#endif

}  // namespace heddle
