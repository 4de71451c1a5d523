// SPDX-License-Identifier: MIT
#pragma once

#include <string_view>
#include <vector>

namespace heddle::diff {

/// Which kernels to run. Each level gives the very same results; tests hold them equal.
enum class Simd { scalar, sse41, avx2 };

/// The best this CPU has.
Simd best_simd();
/// All it has, scalar first: for tests and benches.
std::vector<Simd> simd_levels();
std::string_view simd_name(Simd level);

}  // namespace heddle::diff
