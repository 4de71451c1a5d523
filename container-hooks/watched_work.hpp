// SPDX-License-Identifier: MIT
#pragma once

#include <chrono>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "base/result.hpp"

namespace heddle {

/// How a hook's work ended.
struct WatchedEnd {
  std::optional<int> status;          ///< its exit status, 128+n for signal n; none: out of time
  std::string step;                   ///< what it was at (hook_progress.hpp)
  bool placed = false;                ///< it left something in the container
  std::vector<std::string> unending;  ///< processes of it that cannot be killed yet
  bool done() const { return status && *status < 128; }
};

/// Runs `work` in a process of its own, and ends that with all that it started when it is not done
/// within `limit`. A runtime waits for its hook, and runc until nobody has the hook's stderr: a
/// process that waits in the kernel for a server that has gone cannot be killed, and so must be
/// neither. What it says comes through a pipe.
Result<WatchedEnd> run_watched(std::chrono::milliseconds limit, const std::function<int()>& work);

}  // namespace heddle
