// SPDX-License-Identifier: MIT
#pragma once

#include <optional>
#include <string>

namespace heddle {

/// This process's rank, as Open MPI, PMIx, PMI, Slurm or Flux said it; nullopt: no launcher.
std::optional<int> rank_from_environment();
std::string host_name();
/// Sixteen hexadecimal digits, different for each run.
std::string new_run_id();
/// `<host>[.<rank>].<pid>.txt` (or .jsonl): one name a rank in a shared folder.
std::string trace_file_name(bool json);

}  // namespace heddle
