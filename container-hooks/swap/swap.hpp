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
  ContainerConfig config;        ///< rootfs free of symbolic links; both namespaces have it there
  std::string program;           ///< empty: the container's own first word
};

struct Swapped {
  Decision decision;
  bool by_node = false;  ///< by the mount that the node has of this map
  /// fs-mount behind the container's own mount. It holds nothing of the container's and ends when
  /// the last process of the container's mount namespace has gone; destroyed, it is killed.
  std::optional<Child> server = {};
};

/// Decides which files of the host a container gets and mounts them in it, by a process of ours in
/// the container's mount namespace: a program may lie in a volume, which the rootfs as the host
/// sees it does not show, and this process could not come back from a user namespace. Decides anew
/// when the host's files have changed since an earlier decision. On failure the container is as it
/// was. In the stage createContainer this process gets a mount namespace of its own. `warn` gets a
/// line for each thing that went another way than it should.
Result<Swapped> swap_container(const SwapOrder& order,
                               const std::function<void(const std::string&)>& warn);

}  // namespace heddle::hook
