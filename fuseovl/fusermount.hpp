// SPDX-License-Identifier: MIT
#pragma once

#include <string>

#include "base/fd.hpp"

namespace heddle {

/// Mounts by the setuid program fusermount3 and gives the device it opened. Its words become the
/// error's reason; a hint says so when it is not installed.
Result<Fd> fusermount_mount(const std::string& mount_point, const std::string& options);

struct GuardedMount {
  Fd device;
  /// When its last copy is closed, however that comes about, fusermount3 unmounts what is dead.
  Fd guard;
};
/// As fusermount_mount(), with a fusermount3 that stays to unmount should the daemon be killed.
Result<GuardedMount> fusermount_mount_guarded(const std::string& mount_point,
                                              const std::string& options);

/// Unmounts by fusermount3; `detach` lazily.
Result<void> fusermount_unmount(const std::string& mount_point, bool detach);

}  // namespace heddle
