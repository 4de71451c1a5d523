// SPDX-License-Identifier: MIT
#pragma once

#include <string>
#include <vector>

namespace heddle {

/// A folder that may hold MPI libraries, and what named it.
struct LibraryFolder {
  std::string path;
  std::string named_by;  ///< "PATH: /usr/bin/mpicc.mpich", "MPI_HOME", ...
};

/// Folders named by the MPI compilers and launchers of `path_variable`, and what `mpicc -show` of
/// each prints: that command is run, with a deadline of five seconds.
std::vector<LibraryFolder> folders_from_path(const std::string& path_variable);

/// Folders below an installation's prefix, or itself.
std::vector<LibraryFolder> folders_of_prefix(const std::string& prefix, const std::string& why);

/// Folders named by LD_LIBRARY_PATH and by what module files set (MPI_HOME, I_MPI_ROOT, ...).
std::vector<LibraryFolder> folders_from_environment();

}  // namespace heddle
