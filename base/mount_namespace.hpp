// SPDX-License-Identifier: MIT
#pragma once

#include "base/result.hpp"

namespace heddle {

/// Moves the calling process, single-threaded, into a mount namespace of its own, as
/// make_mounts_private() leaves it. On failure it may be in it already.
Result<void> enter_mount_namespace();

/// In a mount namespace of one's own: what is mounted outside later still arrives (rslave), what is
/// mounted here does not leave. Fails where the root is no mount, as in a plain chroot(2).
Result<void> make_mounts_private();

}  // namespace heddle
