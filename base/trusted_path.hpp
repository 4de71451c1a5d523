// SPDX-License-Identifier: MIT
#pragma once

#include <string>

#include "base/result.hpp"

namespace heddle {

// Programs and configuration files of root must belong to root, since a user who may write to them,
// or to a directory above them, would become root. A user's must belong to that user or root. A
// path that passes stays trusted, since only its trusted owners can change it.

/// Root of the machine, not of a user namespace (`podman unshare`), where the system's directories
/// belong to nobody.
bool is_systems_root();

/// Fails if another user may change the directory `path` (absolute), a directory above it, or a
/// symbolic link on the way. Directories above may be sticky (/tmp), where no user can rename
/// another's; `path` itself may not, since others could create missing files in it. A missing path
/// passes.
Result<void> check_trusted_directory(const std::string& path);

/// Likewise for the regular file `path`, which may be in a sticky directory.
Result<void> check_trusted_file(const std::string& path);

}  // namespace heddle
