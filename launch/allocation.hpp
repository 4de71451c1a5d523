// SPDX-License-Identifier: MIT
#pragma once

// The nodes of the job that fs-launch runs in, which are checked before a hook is set: those of the
// Slurm allocation, of the launcher's command line, or of a file that a batch system or the user
// names to launchers. Those that srun allocates itself are checked later (launch/step_check.hpp).

#include <string>
#include <vector>

#include "base/result.hpp"
#include "launch/launch_settings.hpp"
#include "launch/launcher_line.hpp"

namespace heddle::launch {

inline constexpr const char* kCheckOption = "--check-node";

/// How prepare_nodes() is asked.
struct NodeOptions {
  std::string ship;  ///< the engine of fs-ship, "no", or empty: sbcast
  bool dry_run = false;
};

/// Has each node of the job execute this program, by srun, or by the launchers' remote shell. In an
/// allocation of several nodes fs-ship copies a bundle to all of them, so that settings.map is the
/// copies' path. Where the nodes are not known but srun may start steps, plans a check of each.
/// Failure: the nodes on which this program cannot be executed.
Result<void> prepare_nodes(LaunchSettings& settings, const LineNodes& line,
                           const NodeOptions& options);

/// Of Slurm's job, whose nodes then are those of several jobs; less than 2: it is one job.
long het_components();
/// Has srun start this program with `words` once on each of the `count` nodes of Slurm's job.
/// Result: what they print.
Result<std::string> run_on_slurm_nodes(long count, const std::vector<std::string>& words);
/// Failure: the nodes of Slurm's job, `count`, on which this program cannot be executed.
Result<void> check_slurm_nodes(long count);
/// Copies the bundle `map` to the nodes of Slurm's job. Result: its path there. A failure is
/// reported only: the bundle's own path does for nodes that have no copy.
Result<std::string> ship_bundle(const std::string& map, const std::string& engine);

/// The names of Slurm's `list`, as "n[1-3]", by scontrol; empty: it fails.
std::vector<std::string> slurm_nodes(const std::string& list);

/// `fs-launch --check-node`, on each node: says that it is there, or why it cannot guide.
int check_node();

}  // namespace heddle::launch
