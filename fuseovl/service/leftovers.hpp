// SPDX-License-Identifier: MIT
#pragma once

// What killed processes leave behind: found by its name and its lock, never by what somebody says.

#include <string>
#include <string_view>

#include "base/fd.hpp"
#include "base/temp_dir.hpp"

namespace heddle {

/// Of the names of lease services' sockets in the run directory (base/run_directory.hpp).
inline constexpr std::string_view kLeasePrefix = "lease-";

/// A directory `hd-XXXXXX` in $TMPDIR, mode 0755, and the lock that says that it is in use: one
/// that nobody has locked was left behind. It has that name from the moment that it is locked.
struct WorkDirectory {
  TempDir directory;
  Fd lock;
  static Result<WorkDirectory> make();
};

/// Removes what killed fs-gens and services of this user left: dead mounts, sockets, and
/// directories `hd-XXXXXX` in `parent`. A mount that does not answer holds it up for half a second.
void sweep_leftovers(const std::string& parent);

}  // namespace heddle
