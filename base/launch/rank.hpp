// SPDX-License-Identifier: MIT
#pragma once

#include <optional>
#include <string>

namespace heddle {

/// This process's rank, as Open MPI, PMIx, PMI (MPICH, Intel), PALS, Slurm or Flux said it;
/// nullopt: no launcher.
std::optional<int> rank_from_environment();
std::string host_name();

}  // namespace heddle
