// SPDX-License-Identifier: MIT
#pragma once

#include <string>

#include "base/fd.hpp"

namespace heddle {

/// Mounts by the setuid program fusermount3 and gives the device it opened. Its words become the
/// error's reason; a hint says so when it is not installed.
Result<Fd> fusermount_mount(const std::string& mount_point, const std::string& options);

/// Unmounts by fusermount3; `detach` lazily.
Result<void> fusermount_unmount(const std::string& mount_point, bool detach);

}  // namespace heddle
