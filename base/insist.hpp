// SPDX-License-Identifier: MIT
#pragma once

#include <cerrno>
#include <ctime>

namespace heddle {

/// What `call` returns when it works, or fails (negative, with errno) with what `passes` says no
/// to, or has failed for half a second: for what somebody waits for who would never hear of a
/// failure.
template <class Call, class Passes>
auto insist(Call call, Passes passes) {
  constexpr int kTries = 9;
  for (int attempt = 0;; ++attempt) {
    const auto result = call();
    const int error = errno;
    if (result >= 0 || !passes(error) || attempt == kTries) return result;
    const timespec pause{0, 1'000'000L << attempt};
    ::nanosleep(&pause, nullptr);
  }
}

}  // namespace heddle
