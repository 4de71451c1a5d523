// SPDX-License-Identifier: MIT
#pragma once

#include <chrono>
#include <string>

#include "base/fd.hpp"

namespace heddle {

/// It takes milliseconds, and for ever where a directory above the mount point does not answer.
inline constexpr std::chrono::seconds kFusermountPatience{10};

/// Mounts by the setuid program fusermount3 and gives the device it opened. Its words become the
/// error's reason; a hint says so when it is not installed. ETIMEDOUT: it has not ended for
/// kFusermountPatience, and is left behind.
Result<Fd> fusermount_mount(const std::string& mount_point, const std::string& options);

/// Forks a process that detaches `mount_point`, and does nothing else, for this one, which can give
/// up new privileges then: fusermount3 is setuid. From here on fusermount_unmount() has it detached
/// by that process, as long as the result is open, once. Call it before any thread starts.
Result<Fd> delegate_unmounting(const std::string& mount_point);

/// Unmounts by fusermount3; `detach` lazily. ETIMEDOUT: it has not ended for `limit`.
Result<void> fusermount_unmount(const std::string& mount_point, bool detach,
                                std::chrono::milliseconds limit = kFusermountPatience);

}  // namespace heddle
