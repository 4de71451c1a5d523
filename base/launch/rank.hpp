// SPDX-License-Identifier: MIT
#pragma once

#include <optional>
#include <string>

namespace heddle {

/// This process's rank from the environment of Open MPI, PMIx, PMI (MPICH, Intel), PALS, Slurm or
/// Flux; nullopt: no launcher.
std::optional<int> rank_from_environment();
std::string host_name();

}  // namespace heddle
