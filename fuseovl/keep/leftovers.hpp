// SPDX-License-Identifier: MIT
#pragma once

// What is left behind by those who are killed: found by their own names and locks, never by what
// somebody says.

#include <string>
#include <string_view>

#include "base/fd.hpp"

namespace heddle {

/// Of the names of kept mounts' sockets in the run directory (base/run_directory.hpp).
inline constexpr std::string_view kLeasePrefix = "lease-";

/// Locks a folder of this run's, until the descriptor is closed: one that nobody has locked is one
/// that was left behind.
Result<Fd> lock_folder(const std::string& path);
/// Removes the folders `hd-XXXXXX` in `parent` that this user's killed fs-gens and daemons left.
/// May take a second: young ones may be about to be locked.
void sweep_folders(const std::string& parent);
/// Removes the sockets of kept mounts' daemons that were killed.
void sweep_sockets();

}  // namespace heddle
