// SPDX-License-Identifier: MIT
#pragma once

#include <string>

#include "base/fd.hpp"

namespace heddle {

enum class NamespaceKind : std::uint8_t {
  mount,           ///< root: a mount namespace
  user_and_mount,  ///< anybody: a user namespace that maps the caller to himself, and a mount one
};

/// Moves the calling process, single-threaded, into namespaces of its own; what is mounted outside
/// later still arrives (rslave), what it mounts does not leave. On failure it may be in them
/// already.
Result<void> enter_private_namespace(NamespaceKind kind);

/// Moves the calling process into a private mount namespace and mounts a FUSE file system at
/// `mount_point` there. Result: the /dev/fuse descriptor, to be served by a daemon that stays
/// outside: the mount then lives exactly as long as the namespace's processes, and goes with the
/// last of them however it ends. Propagation is rslave, so that what the host mounts later (autofs
/// homes) still arrives. The process must be single-threaded. On failure the namespace may already
/// be left.
Result<Fd> mount_privately(const std::string& mount_point, NamespaceKind kind);

/// Moves the calling process into a private mount namespace, propagation rslave, and attaches a
/// detached mount (open_tree(2)) at `mount_point` there. For root; the process must be
/// single-threaded.
Result<void> attach_privately(int tree, const std::string& mount_point);

/// Which kind this process can use: mount with CAP_SYS_ADMIN, else user_and_mount.
NamespaceKind usable_namespace_kind();

}  // namespace heddle
