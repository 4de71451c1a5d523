// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>

namespace heddle {

/// What glibc's loader makes of this x86-64 CPU (sysdeps/x86/cpu-features.c, get-isa-level.h),
/// asked of cpuid and XCR0 directly: a feature counts only when the kernel saves its registers.
struct CpuLevels {
  /// GNU_PROPERTY_X86_ISA_1_BASELINE, _V2, _V3, _V4 as bits 0 to 3; 0 on another architecture.
  std::uint32_t isa_levels = 0;
  bool haswell = false;  ///< Intel with AVX2, BMI and so on: AT_PLATFORM is overridden
  bool xeon_phi = false;
  bool avx512_1 = false;  ///< the legacy capability of that name
};

CpuLevels read_cpu_levels();

}  // namespace heddle
