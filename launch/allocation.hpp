// SPDX-License-Identifier: MIT
#pragma once

// The nodes of the Slurm job that fs-launch runs in, which are checked before a hook is set.

#include <string>
#include <vector>

#include "base/result.hpp"
#include "launch/launch_settings.hpp"

namespace heddle::launch {

inline constexpr const char* kCheckOption = "--check-node";

/// In an allocation of several nodes: has each of them execute this program, and a bundle copied to
/// all of them by fs-ship (`ship`: its engine, or "no"), so that settings.map is the copies' path.
/// Failure: the nodes on which this program cannot be executed. Elsewhere it does nothing: the
/// nodes are not known.
Result<void> prepare_nodes(LaunchSettings& settings, const std::string& ship, bool dry_run);

/// The names of Slurm's `list`, as "n[1-3]", by scontrol; empty: it fails.
std::vector<std::string> slurm_nodes(const std::string& list);

/// `fs-launch --check-node`, on each node: says that it is there, or why it cannot guide.
int check_node();

}  // namespace heddle::launch
