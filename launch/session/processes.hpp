// SPDX-License-Identifier: MIT
#pragma once

#include <chrono>
#include <string>
#include <vector>

#include "launch/session/messages.hpp"

namespace heddle::launch {

/// The ranks of this user on this node, by their environment, which every launcher sets: of the
/// Slurm step `J.S`, of the job `J`, or of any launcher for an empty `of`. A rank is the oldest of
/// the processes with its number, so that its children are not taken for it. Sorted by job and
/// rank. A process whose environment cannot be read (setuid, not dumpable) is none.
std::vector<Rank> ranks_here(const std::string& of);

/// Sends `signal` (0: only asks) to the process that `rank` was found as. false: it has ended.
Result<bool> signal_rank(const Rank& rank, int signal);

/// Ends the processes of this user here that were started in the session `directory` and whose
/// agent was killed: those with it in their environment. SIGTERM, after two seconds SIGKILL.
void end_left_behind(const std::string& directory);

/// Ends all descendants of this process, a subreaper: SIGTERM, after `grace` SIGKILL; reaps them.
/// A pid cannot have another process meanwhile: only own children are killed by pid, and theirs are
/// own ones as soon as these are gone.
void end_descendants(std::chrono::milliseconds grace);

}  // namespace heddle::launch
