// SPDX-License-Identifier: MIT
#pragma once

#include <chrono>
#include <cstdint>

namespace heddle {

/// CLOCK_MONOTONIC in milliseconds: the same in all processes of this machine.
inline std::int64_t monotonic_ms() {
  return std::chrono::duration_cast<std::chrono::milliseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

}  // namespace heddle
