// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>

#include "base/result.hpp"

namespace heddle {

enum class NamespaceKind : std::uint8_t {
  mount,           ///< root: a mount namespace
  user_and_mount,  ///< anybody: a user namespace that maps the caller to itself, and a mount one
};

/// Which kind this process can use: mount with CAP_SYS_ADMIN, else user_and_mount.
NamespaceKind usable_namespace_kind();

/// Moves the calling process, single-threaded, into namespaces of its own; what is mounted outside
/// later still arrives (rslave), what it mounts does not leave. Fails where the root is no mount,
/// as in a plain chroot(2). On failure the process may be in the namespaces already.
Result<void> enter_private_namespace(NamespaceKind kind);

}  // namespace heddle
