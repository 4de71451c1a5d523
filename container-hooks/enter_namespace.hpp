// SPDX-License-Identifier: MIT
#pragma once

#include <sys/types.h>

#include "base/fd.hpp"

namespace heddle {

/// Moves this process, single-threaded, into the mount namespace of process `pid`, and into its
/// user namespace when it has no rights otherwise: there is no way back from that one. As long as
/// the container's root is not changed, the host's tree is there as well. On failure the user
/// namespace may be left already.
Result<void> enter_mount_namespace(pid_t pid);

}  // namespace heddle
