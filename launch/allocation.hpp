// SPDX-License-Identifier: MIT
#pragma once

// The nodes of the job that fs-launch runs in, which are checked before a hook is set: those of the
// Slurm allocation, of the launcher's command line, or of a file that a batch system or the user
// names to launchers. Those that srun allocates itself are not known.

#include <string>
#include <vector>

#include "base/result.hpp"
#include "launch/launch_settings.hpp"
#include "launch/launcher_line.hpp"

namespace heddle::launch {

inline constexpr const char* kCheckOption = "--check-node";

/// Has each node of the job execute this program, by srun, or by the launchers' remote shell. In an
/// allocation of several nodes fs-ship copies a bundle to all of them (`ship`: its engine, "no",
/// or empty: sbcast), so that settings.map is the copies' path. Failure: the nodes on which this
/// program cannot be executed.
Result<void> prepare_nodes(LaunchSettings& settings, const LineNodes& line, const std::string& ship,
                           bool dry_run);

/// The names of Slurm's `list`, as "n[1-3]", by scontrol; empty: it fails.
std::vector<std::string> slurm_nodes(const std::string& list);

/// `fs-launch --check-node`, on each node: says that it is there, or why it cannot guide.
int check_node();

}  // namespace heddle::launch
