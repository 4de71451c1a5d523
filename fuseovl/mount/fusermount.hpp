// SPDX-License-Identifier: MIT
#pragma once

#include <chrono>
#include <string>

#include "base/fd.hpp"

namespace heddle {

/// fusermount3 takes milliseconds, but hangs where a directory above the mount point does not
/// answer.
inline constexpr std::chrono::seconds kFusermountPatience{10};

/// Mounts by the setuid program fusermount3 and returns the device that it opened. Its message is
/// the error's reason. ETIMEDOUT: it has not ended within kFusermountPatience and is left behind.
Result<Fd> fusermount_mount(const std::string& mount_point, const std::string& options);

/// Forks the guard, a process that detaches `mount_point` and does nothing else: this process can
/// then give up new privileges, which the setuid fusermount3 needs. While the result is open,
/// fusermount_unmount() asks the guard. Call it before any thread starts.
Result<Fd> delegate_unmounting(const std::string& mount_point);

/// Unmounts by fusermount3, with `detach` lazily. ETIMEDOUT: it has not ended within `limit`.
Result<void> fusermount_unmount(const std::string& mount_point, bool detach,
                                std::chrono::milliseconds limit = kFusermountPatience);

}  // namespace heddle
