// SPDX-License-Identifier: MIT
#pragma once

#include <string>
#include <vector>

#include "resolver/mpi/find_mpi.hpp"

namespace heddle {

/// A file that a run opened.
struct TracedFile {
  std::string path;
  bool known = false;  ///< the installation's library, closure, bindings or plugins tell of it
};

/// The index of the installation that `program` loads its MPI from. Fails when it loads none.
Result<std::size_t> install_of(OsWorld& world, const std::vector<MpiInstall>& installs,
                               const std::string& program);

/// Starts two ranks of `program` by the installation's own launcher under fs-record and gives what
/// they, and the launcher, opened of this machine's files; sorted. What the program prints goes to
/// stderr. Fails when the run does.
Result<std::vector<TracedFile>> trace_two_ranks(OsWorld& world, const MpiInstall& install,
                                                const std::string& program);

}  // namespace heddle
