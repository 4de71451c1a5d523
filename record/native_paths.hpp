// SPDX-License-Identifier: MIT
#pragma once

#include <string>
#include <vector>

namespace heddle {

/// The paths that stay native, found before the run.
struct NativePaths {
  std::vector<std::string> paths;  ///< real paths, none below another
  std::vector<std::string> notes;  ///< for the trace's header
};

/// - /proc, /sys, /dev, /run and every other procfs;
/// - directories of sockets that processes outside answer: the kernel finds a listener by the
///   socket's inode, which the loopback's is not. Where other files share the directory (/tmp, the
///   home directory, one above `cwd`), the socket alone;
/// - the MPI launcher's session directories (PMIX_*, OMPI_*, PMI_*), whose files ranks map shared.
NativePaths find_native_paths(const std::string& cwd, const std::vector<std::string>& environment);

/// The paths of sockets on which a process answers, from the text of /proc/net/unix.
std::vector<std::string> served_sockets(const std::string& proc_net_unix);

}  // namespace heddle
