// SPDX-License-Identifier: MIT
#pragma once

#include <string>
#include <vector>

#include "resolver/mpi/find_mpi.hpp"
#include "resolver/policy/decision.hpp"

namespace heddle {

struct DecideOptions {
  std::vector<std::string> programs;  ///< in the container; a name without '/' is looked for there
  std::string mount_point = "/dev/heddle";
  /// The host's, best first; the first whose ABI is that of the container's MPI is taken.
  std::vector<MpiInstall> installs;
  bool mpi_wanted = true;         ///< false: `roots` alone
  std::vector<MpiInstall> roots;  ///< further libraries that are to be the host's (libfabric.so.1)
  std::string library_path;       ///< LD_LIBRARY_PATH that the container will run with
};

/// Decides for each soname whose file the programs get, from version definitions and symbols, and
/// checks it by resolving the programs again as if all were in place. `inside` is below the
/// container's root. Nothing is executed. Fails when a side cannot be read at all; what must not
/// start is an outcome, no failure.
Result<Decision> decide(OsWorld& host, OsWorld& inside, const DecideOptions& options);

}  // namespace heddle
