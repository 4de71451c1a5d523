// SPDX-License-Identifier: MIT
#pragma once

#include <optional>
#include <string>

namespace heddle {

/// This process's rank, as Open MPI, PMIx, PMI (MPICH, Intel), PALS, Slurm or Flux said it;
/// nullopt: no launcher.
std::optional<int> rank_from_environment();
std::string host_name();

/// `name` with %r: the rank (0 without a launcher), %h: the host, %p: this process's number, %%: a
/// percent sign. Any other % is left as it is.
std::string with_run_names(const std::string& name);

}  // namespace heddle
