// SPDX-License-Identifier: MIT
#pragma once

// Nodes that srun allocates itself, or for a script, are known once srun has them. Before the ranks
// of a step start srun executes the program that SLURM_PROLOG names, on its own node (srun(1)):
// this one, by a link of another name. It has each node of the job checked, and a bundle copied
// there. Where a node cannot guide, each of the others gets a mark, by which the agents of the step
// run their ranks unguided; a step in containers, or with held ranks, is ended.

#include <string>

#include "base/result.hpp"
#include "launch/launch_settings.hpp"

namespace heddle::launch {

inline constexpr const char* kPrologVariable = "SLURM_PROLOG";
inline constexpr const char* kMarkOption = "--mark-step";

/// Has hooks_for() set SLURM_PROLOG. The user's own, or else the site's SrunProlog, is executed by
/// check_step(). `engine` of fs-ship for a bundle of this id; both are empty: none is copied.
void plan_step_check(LaunchSettings& settings, const std::string& engine, const std::string& id);
/// Takes it out of this process's environment, which gets the user's own again.
void remove_step_check();
/// The value of SLURM_PROLOG, for an installation at `prefix`.
std::string step_check_program(const std::string& prefix);
bool is_step_check(const std::string& program);

/// The program itself, `argv[0]` and the words of the ranks' program. Becomes the user's own
/// prolog, if there is one. Result: the exit status.
int check_step(int argc, char** argv);
/// `fs-launch --mark-step STEP WHY`, on each node of the job.
int mark_step(const std::string& step, const std::string& why);

/// In a rank: why its step is unguided as a whole; empty: it is not. Sets the path of the node's
/// copy of a bundle in `settings`.
std::string take_step_check(LaunchSettings& settings);

}  // namespace heddle::launch
