// SPDX-License-Identifier: MIT
#pragma once

#include <sys/types.h>

#include <chrono>
#include <string>
#include <utility>
#include <vector>

#include "base/child.hpp"
#include "container-hooks/host/programs.hpp"
#include "container-hooks/oci/container_config.hpp"

namespace heddle::hook {

/// Makes this process, single-threaded and a user's, root of a new user namespace.
Result<void> become_root_of_own_namespace();

/// An image as a container of ours, to look into it before it is started: namespaces of its own
/// (mount, pid, network, IPC), everything read-only, no network, no device, bounded time. What runs
/// in it belongs to the image, is not to be believed, and is nobody (in a user namespace without
/// anybody else), with no capability, few system calls, and bounded memory.
/// It is gone with this object.
class SandboxContainer {
 public:
  /// For root, of this user namespace. `rootfs` is absolute and free of links. A run may take
  /// `limit`.
  static Result<SandboxContainer> start(const std::string& rootfs,
                                        const std::vector<Volume>& volumes,
                                        std::chrono::seconds limit);

  /// Its first process, which is in its mount namespace: what a hook gets as the container's pid.
  pid_t pid() const { return child_.pid(); }

  /// Runs argv[0] with the image as root directory. argv's last word is a path, given free of
  /// links. From the first run on the container's root is changed: mount before it. Fails when it
  /// takes too long or prints too much; its exit status does not matter.
  Result<Output> run(const std::vector<std::string>& argv,
                     const std::vector<std::string>& environment);

 private:
  SandboxContainer(Child child, Fd socket, std::chrono::seconds limit)
      : child_(std::move(child)), socket_(std::move(socket)), limit_(limit) {}
  Child child_;
  Fd socket_;
  std::chrono::seconds limit_;
};

}  // namespace heddle::hook
