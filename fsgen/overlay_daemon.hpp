// SPDX-License-Identifier: MIT
#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include "base/child.hpp"
#include "base/result.hpp"

namespace heddle {

struct DaemonRequest {
  std::string map_path;     ///< absolute
  std::string mount_point;  ///< as APP sees it
  std::string cleanup_dir;  ///< the daemon removes it when it ends; empty: nothing
  std::vector<std::string> extra_options;
};

/// fs-mount, serving a descriptor that APP's process mounted. It outlives us while APP's own
/// children still use the mount, and ends with the last of them.
class OverlayDaemon {
 public:
  /// Starts it and waits until it answers. Failure: its own words.
  static Result<OverlayDaemon> start(const Fd& fuse, const DaemonRequest& request);
  /// After APP has ended: the counters it reports at its end (JSON, empty when it gave none).
  /// nullopt: it still serves somebody at the deadline and goes on alone.
  Result<std::optional<std::string>> finish(std::chrono::milliseconds limit);

 private:
  OverlayDaemon(Child child, Fd pipe) : child_(std::move(child)), pipe_(std::move(pipe)) {}
  Child child_;
  Fd pipe_;
};

}  // namespace heddle
