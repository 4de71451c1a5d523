// SPDX-License-Identifier: MIT
#pragma once

#include <string>

#include "base/result.hpp"

namespace heddle {

// What root executes, reads and is told to do by files must be root's: a user who may write to such
// a file, or to any directory above it, is root otherwise. A user's files are that user's or
// root's. A path that passes stays good until it is used: only its trusted owners can change the
// way to it.

/// Root of the machine, not of a user namespace (`podman unshare`), where the system's directories
/// are nobody's.
bool is_systems_root();

/// Whether no other user may change what the directory `path` (absolute) leads to: it, all
/// directories above it, and the symbolic links on the way. Those above may be sticky (/tmp), where
/// nobody renames another user's directory; `path` itself may not, since others could create in it
/// what is missing. What does not exist passes.
Result<void> check_trusted_directory(const std::string& path);

/// Likewise the regular file `path`, which may lie in a sticky directory.
Result<void> check_trusted_file(const std::string& path);

}  // namespace heddle
