// SPDX-License-Identifier: MIT
#pragma once

// How fs-launch gets into ranks: by environment variables alone, all at once, since which launcher
// a script starts is not known.
//   LD_AUDIT         the audit library, which executes the agent in each process that is a rank
//   HEDDLE_LAUNCH    the agent and its settings (base/rank_mark.hpp)
//   SLURM_PROLOG     has srun check the nodes that it allocates itself (launch/step_check.hpp)
//   OMPI_MCA_orte_fork_agent, PRTE_MCA_odls_base_exec_agent
//                    Open MPI and PRRTE hand no other variables to other nodes: env(1) sets these
//                    two and executes kHookWords, another env(1), by which static ranks enter, too
// Where a node has no heddle, ld.so says so in one line and goes on: the rank runs unguided. An
// agent as the fork agent itself would end the job there: Open MPI 4 does not start it, and exits
// with 0.

#include <array>
#include <string>
#include <utility>
#include <vector>

#include "base/result.hpp"
#include "launch/launch_settings.hpp"

namespace heddle::launch {

/// Before a rank's own words, which the agent takes from behind them. Where a node has no heddle
/// they do nothing.
inline constexpr std::array kHookWords{"/usr/bin/env", "-u", "HEDDLE_RANK"};

struct Hooks {
  std::vector<std::pair<std::string, std::string>> variables;
  std::vector<std::string> notes;  ///< what of the user's is left alone, and what that costs
};

/// `program`: the launcher's file, near which its site's configuration may be; `command`: its line,
/// which may set LD_AUDIT for ranks, or keep our variables from them. Fails when this
/// installation's path can be given to no launcher, or when ranks would run outside of their image.
Result<Hooks> hooks_for(const LaunchSettings& settings, const std::string& program,
                        const std::vector<std::string>& command);

/// default_cache_dir(). Failure: HOME is not set, or others can change it.
Result<std::string> cache_directory();

/// In a rank: takes all of hooks_for() out of this process's environment.
void remove_hooks();

}  // namespace heddle::launch
