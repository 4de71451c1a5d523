// SPDX-License-Identifier: MIT
#pragma once

// What killed processes leave behind: found by its name and its lock, never by what somebody says.

#include <string>
#include <string_view>

#include "base/fd.hpp"

namespace heddle {

/// Of the names of lease services' sockets in the run directory (base/run_directory.hpp).
inline constexpr std::string_view kLeasePrefix = "lease-";

/// Locks a directory of this run's, until the descriptor is closed: one that nobody has locked was
/// left behind.
Result<Fd> lock_directory(const std::string& path);
/// Removes what killed fs-gens and services of this user left: dead mounts, sockets, and
/// directories `hd-XXXXXX` in `parent`, once they are two minutes old. A mount that does not answer
/// holds it up for half a second.
void sweep_leftovers(const std::string& parent);

}  // namespace heddle
