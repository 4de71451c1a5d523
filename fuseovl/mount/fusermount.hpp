// SPDX-License-Identifier: MIT
#pragma once

#include <chrono>
#include <string>

#include "base/fd.hpp"

namespace heddle {

/// It takes milliseconds, and for ever where a folder above the mount point does not answer.
inline constexpr std::chrono::seconds kFusermountPatience{10};

/// Mounts by the setuid program fusermount3 and gives the device it opened. Its words become the
/// error's reason; a hint says so when it is not installed. ETIMEDOUT: it has not ended for
/// kFusermountPatience, and is left behind.
Result<Fd> fusermount_mount(const std::string& mount_point, const std::string& options);

/// Unmounts by fusermount3; `detach` lazily. ETIMEDOUT: it has not ended for `limit`.
Result<void> fusermount_unmount(const std::string& mount_point, bool detach,
                                std::chrono::milliseconds limit = kFusermountPatience);

}  // namespace heddle
