// SPDX-License-Identifier: MIT
#pragma once

#include <map>
#include <string>
#include <vector>

#include "base/container_decision.hpp"
#include "resolver/mpi/find_mpi.hpp"

namespace heddle::policy {

/// The document, and the content of the map.
struct Decision : ContainerDecision {
  /// View name -> file on the host.
  std::map<std::string, std::string> names;
  std::string ld_so_cache;  ///< bytes
  /// Generated files of the mount, by their names below its root.
  std::map<std::string, std::string> made;
};

struct DecideOptions {
  std::vector<std::string> programs;  ///< in the container; names without '/' are searched there
  std::string mount_point = "/dev/heddle";
  /// The host's, best first; the first whose ABI is that of the container's MPI is taken.
  std::vector<MpiInstall> installs;
  bool mpi_wanted = true;         ///< false: only `roots`
  std::vector<MpiInstall> roots;  ///< further libraries to take from the host (libfabric.so.1)
  std::string path;               ///< the container's PATH
  std::string library_path;       ///< the container's LD_LIBRARY_PATH
  std::string preload;            ///< the container's LD_PRELOAD
};

/// Decides for each soname whose file the programs get, by version definitions and symbols, and
/// checks this by a second resolution of the programs with the chosen files. `inside` is below the
/// container's root. Nothing is executed. Fails when a side cannot be read; a container that must
/// not start is an outcome.
Result<Decision> decide(OsWorld& host, OsWorld& inside, const DecideOptions& options);

}  // namespace heddle::policy
