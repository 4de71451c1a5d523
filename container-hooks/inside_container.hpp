// SPDX-License-Identifier: MIT
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

#include "base/process.hpp"
#include "container-hooks/container_config.hpp"
#include "container-hooks/decision.hpp"

namespace heddle {

struct MountOrder {
  Stage stage = Stage::create_runtime;
  pid_t pid = 0;       ///< create_runtime: the container's first process
  std::string rootfs;  ///< absolute; both namespaces have it there
  Decision decision;
};

/// A process of ours in the container's mount namespace, so that the hook itself stays where it is
/// (a process cannot come back from a user namespace). It mounts in two steps, since the files that
/// are bound come from the mount. Destroyed, it is killed and reaped.
class InsideContainer {
 public:
  /// Forks. It does nothing yet.
  static Result<InsideContainer> start(const MountOrder& order);

  /// Enters, makes the mount point and mounts on it. The device, for the daemon; when the image
  /// has no place for the mount, or lacks a file to bind over, it fails and nothing is mounted.
  Result<Fd> mount();
  /// The daemon answers: binds what the decision names. On failure all that was mounted is taken
  /// away again.
  Result<void> bind();
  /// The daemon does not answer: takes the mount away.
  void give_up();

 private:
  InsideContainer(Child child, Fd socket) : child_(std::move(child)), socket_(std::move(socket)) {}
  Child child_;
  Fd socket_;
};

}  // namespace heddle
