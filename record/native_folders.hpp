// SPDX-License-Identifier: MIT
#pragma once

#include <string>
#include <vector>

namespace heddle {

/// What cannot go through the loopback and why, found before the run.
struct NativeFolders {
  std::vector<std::string> paths;  ///< real paths, none below another
  std::vector<std::string> notes;  ///< one sentence each, for the trace's header
};

/// - /proc, /sys, /dev are the kernel's, as is each procfs, which shows what who asks may see; /run
///   is where daemons meet;
/// - a unix socket is found by its inode, so one whose listener is outside is not reached through
///   ours: the folders of sockets that /proc/net/unix names, or only the socket where its folder is
///   one that everybody uses (/tmp, the home folder, one above `cwd`);
/// - files mapped shared by processes outside are not coherent with ours: what the variables
///   PMIX_*, OMPI_* and PMI_* name (the launcher's session folders).
NativeFolders find_native_folders(const std::string& cwd,
                                  const std::vector<std::string>& environment);

/// The socket paths that somebody outside answers at, from the text of /proc/net/unix.
std::vector<std::string> served_sockets(const std::string& proc_net_unix);

}  // namespace heddle
