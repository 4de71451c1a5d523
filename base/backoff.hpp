// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <thread>
#include <utility>

namespace heddle {

/// CLOCK_MONOTONIC in milliseconds: the same in all processes of this machine.
inline std::int64_t monotonic_ms() {
  return std::chrono::duration_cast<std::chrono::milliseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

/// The pauses between tries: `first`, then each twice as long as the one before, up to `longest`.
class Backoff {
 public:
  using Duration = std::chrono::microseconds;
  explicit Backoff(Duration first, Duration longest)
      : first_(first), next_(first), longest_(longest) {}
  Duration next() { return std::exchange(next_, std::min(2 * next_, longest_)); }
  void sleep() { std::this_thread::sleep_for(next()); }
  /// Does not sleep and returns false from `end` on.
  bool sleep_before(std::chrono::steady_clock::time_point end) {
    if (std::chrono::steady_clock::now() >= end) return false;
    return sleep(), true;
  }
  void restart() { next_ = first_; }

 private:
  Duration first_;
  Duration next_;
  Duration longest_;
};

/// Retries `call` for half a second while it fails (negative, with errno) with an error for which
/// `passes` is true. Result: the last one. For work whose failure cannot be reported.
template <class Call, class Passes>
auto insist(Call call, Passes passes) {
  constexpr int kTries = 9;
  Backoff pauses(std::chrono::milliseconds(1), std::chrono::milliseconds(256));
  for (int attempt = 0;; ++attempt) {
    const auto result = call();
    const int error = errno;
    if (result >= 0 || !passes(error) || attempt == kTries) return result;
    pauses.sleep();
  }
}

}  // namespace heddle
