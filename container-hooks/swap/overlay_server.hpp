// SPDX-License-Identifier: MIT
#pragma once

#include <string>

#include "base/child.hpp"

namespace heddle::hook {

struct ServeRequest {
  std::string map;
  std::string mount_point;     ///< in the container
  bool own_namespace = false;  ///< we have unshared the mount namespace for it
  std::string log;             ///< file for the daemon's messages; empty: none
};

/// fs-mount behind one container's mount. It holds nothing of the container's and ends when the
/// last process of the container's mount namespace has gone. Destroyed before leave_running(), it
/// is killed.
class OverlayServer {
 public:
  /// Returns when it answers. Cause::unfit: files of the host are not as the map says.
  static Result<OverlayServer> start(const Fd& device, const ServeRequest& request);
  void leave_running() { (void)child_.release(); }

 private:
  explicit OverlayServer(Child child) : child_(std::move(child)) {}
  Child child_;
};

}  // namespace heddle::hook
