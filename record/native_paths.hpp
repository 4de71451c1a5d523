// SPDX-License-Identifier: MIT
#pragma once

#include <string>
#include <vector>

namespace heddle {

/// What cannot go through the loopback and why, found before the run.
struct NativePaths {
  std::vector<std::string> paths;  ///< real paths, none below another
  std::vector<std::string> notes;  ///< one sentence each, for the trace's header
};

/// - /proc, /sys, /dev are the kernel's, as is each procfs, which shows what the reader may see;
/// /run
///   is where daemons meet;
/// - a unix socket is found by its inode, so one whose listener is outside is not reached through
///   ours: the directories of sockets that /proc/net/unix names, or only the socket where its
///   directory is one that everybody uses (/tmp, the home directory, one above `cwd`);
/// - files mapped shared by processes outside are not coherent with ours: what the variables
///   PMIX_*, OMPI_* and PMI_* name (the launcher's session directories).
NativePaths find_native_paths(const std::string& cwd, const std::vector<std::string>& environment);

/// The paths of sockets that a process outside answers, from the text of /proc/net/unix.
std::vector<std::string> served_sockets(const std::string& proc_net_unix);

}  // namespace heddle
