// SPDX-License-Identifier: MIT
#pragma once

#include <sys/types.h>

#include <string>

#include "base/child.hpp"
#include "container-hooks/cache/decision_cache.hpp"
#include "container-hooks/oci/container_config.hpp"

namespace heddle::hook {

struct InsideOrder {
  Stage stage = Stage::create_runtime;
  pid_t pid = 0;           ///< create_runtime: the container's first process
  ContainerConfig config;  ///< rootfs free of symbolic links; both namespaces have it there
  std::string program;     ///< empty: the container's own first word
  std::string cache;       ///< directory
  CacheLimits limits;
  std::string mount_point;
  std::string mpi = "auto";
  std::string stale_map = {};  ///< as in ImageQuestion
};

/// A process of ours in the container's mount namespace, so that the hook itself stays where it is
/// (a process cannot come back from a user namespace). It decides with the container's mounts in
/// place: a program may lie in a volume, which the rootfs as the host sees it does not show. Then
/// it mounts, in two steps, since the files that are bound come from the mount. When this object is
/// destroyed, or its process killed, it takes away what it has mounted; destroyed, it is killed.
class InsideContainer {
 public:
  /// Forks. It does nothing yet.
  static Result<InsideContainer> start(const InsideOrder& order);

  /// Enters the namespace and decides, once.
  Result<Decided> decide();
  /// Makes the mount point and mounts on it. Result: the device, for the daemon. When the image has
  /// no place for the mount, or lacks a file to bind over, it fails and nothing is mounted.
  Result<Fd> mount();
  /// The daemon answers: binds what was decided. On failure all that was mounted is taken away
  /// again.
  Result<void> bind();
  /// In place of mount() and bind(): with the node's mount, detached.
  Result<void> share(const Fd& tree);
  /// The daemon does not answer: takes the mount away.
  void give_up();

 private:
  Result<void> done();
  InsideContainer(Child child, Fd socket, Fd answer)
      : child_(std::move(child)), socket_(std::move(socket)), answer_(std::move(answer)) {}
  Child child_;
  Fd socket_;  ///< a Step a packet to it; descriptors and failures from it
  Fd answer_;  ///< the decision; it also sees by this pipe that this process has ended
};

}  // namespace heddle::hook
