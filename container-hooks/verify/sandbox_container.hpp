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

/// Makes this single-threaded process of an unprivileged user root of a new user namespace.
Result<void> become_root_of_own_namespace();

/// A container for inspecting an image: namespaces of its own (mount, pid, network, IPC), all
/// read-only, no network, no device, bounded time. Its programs are the image's and untrusted: they
/// run as nobody, alone in a user namespace, without capabilities, with few system calls and
/// bounded memory. The destructor kills all.
class SandboxContainer {
 public:
  /// For root of this user namespace. `rootfs` is canonical. `limit` is for each run().
  static Result<SandboxContainer> start(const std::string& rootfs,
                                        const std::vector<Volume>& volumes,
                                        std::chrono::seconds limit);

  /// A process in its mount namespace, as the pid that a hook gets.
  pid_t pid() const { return child_.pid(); }

  /// Runs argv[0] with the image as root directory; argv's last word is a path, which becomes
  /// canonical. The first run changes the container's root: mount before it. Fails when the program
  /// takes too long or prints too much, whatever its exit status.
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
