// SPDX-License-Identifier: MIT
#pragma once

#include <string>

#include "base/result.hpp"

namespace heddle {

// What root executes and reads must be root's: whoever may write to a program, or to any directory
// above it, is root otherwise. A user's files are that user's or root's. What is found good stays
// so until it is used: every directory on the way can be changed by its trusted owner alone.

/// `podman unshare` makes a user root of a user namespace, where the system's folders are nobody's.
bool is_systems_root();

/// Whether nobody else may change what the directory `path` (absolute) leads to: it, all above it,
/// and the links on the way. Those above may be sticky (/tmp), where nobody renames another's
/// directory; it itself may not, since others may make what is missing in it. What does not exist
/// is passed over.
Result<void> check_trusted_directory(const std::string& path);

/// Likewise the regular file `path`, with its directory.
Result<void> check_trusted_file(const std::string& path);

/// This program and those that it starts (helper_program.hpp).
Result<void> check_trusted_programs();

}  // namespace heddle
