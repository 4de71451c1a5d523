// SPDX-License-Identifier: MIT
#pragma once

// Removal of what killed processes leave behind, recognised by names and locks.

#include <string>
#include <string_view>

#include "base/fd.hpp"
#include "base/temp_dir.hpp"

namespace heddle {

/// Prefix of lease services' sockets in the run directory (base/run_directory.hpp).
inline constexpr std::string_view kLeasePrefix = "lease-";

/// A directory `hd-XXXXXX` in $TMPDIR, mode 0755, and its lock. It gets that name once it is
/// locked: an unlocked one was left behind.
struct WorkDirectory {
  TempDir directory;
  Fd lock;
  static Result<WorkDirectory> make();
};

/// Removes sockets of killed services of this user. For processes that may connect: a confined
/// service may not.
void sweep_sockets();
/// Removes what killed fs-gens and services of this user left: dead mounts, sockets, and
/// directories `hd-XXXXXX` in `parent`. A mount that does not answer takes half a second; the
/// directory of another's TMPDIR may never answer.
void sweep_leftovers(const std::string& parent);
/// Starts a process that does it, which nothing waits for; it ends after half a minute.
void start_sweep(const std::string& parent);

}  // namespace heddle
