// SPDX-License-Identifier: MIT
#pragma once

#include <sys/types.h>

#include <functional>
#include <optional>
#include <string>

#include "base/child.hpp"
#include "container-hooks/oci/hook_settings.hpp"

namespace heddle::hook {

struct SwapOrder {
  const HookSettings& settings;  ///< stage, cache, mount point, MPI, node, log
  pid_t pid = 0;                 ///< createRuntime: the container's first process
  ContainerConfig config;        ///< its rootfs is canonical, and the same in both namespaces
  std::string program;           ///< empty: the container's args[0]
};

struct Swapped {
  Decision decision;
  bool by_node = false;  ///< by the node's mount of this map
  /// fs-mount behind the container's own mount. It keeps no file of the container open and ends
  /// with the container's mount namespace; destroyed, it is killed.
  std::optional<Child> server = {};
};

/// Decides which files of the host a container gets, and mounts them. A process in the container's
/// mount namespace does so, because a program may lie in a volume, which only that namespace shows,
/// and a process cannot return from a user namespace. Decides anew when the host's files have
/// changed since a cached decision. On failure the container is unchanged. In the stage
/// createContainer the calling process gets a mount namespace of its own. `warn` gets a line for
/// each deviation.
Result<Swapped> swap_container(const SwapOrder& order,
                               const std::function<void(const std::string&)>& warn);

}  // namespace heddle::hook
