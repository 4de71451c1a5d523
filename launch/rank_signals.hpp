// SPDX-License-Identifier: MIT
#pragma once

// Signals of a rank that is not the process which its launcher started, but below it in the same
// process group: launcher - agent - collector - rank. Launchers signal the group (hydra, Open MPI),
// the process that they started (Slurm's proctrack/cgroup) or each process of the tree
// (proctrack/linuxproc). The rank gets a signal to the group or the tree by itself. So the
// collector gets none, and the agent forwards only what is sent to it alone.

#include <functional>
#include <string>

#include "base/child.hpp"
#include "base/launch/app_process.hpp"
#include "base/result.hpp"

namespace heddle::launch {

/// Neither si_code nor si_pid tells a signal to a process from one to its group. A member of the
/// group does that no process signals alone: it blocks all signals and is asked which are pending.
class GroupWitness {
 public:
  /// For a process that blocks all signals.
  static Result<GroupWitness> start();
  /// Whether the group has got the signal since the last question about it. Takes 50 ms if it has
  /// not. False without an answer in a second, which a stopped witness does not give, and then on.
  bool has_got(int number);

 private:
  GroupWitness(Child child, Fd socket) : child_(std::move(child)), socket_(std::move(socket)) {}
  Child child_;
  Fd socket_;
};

/// The agent: runs `collect` in a child process, which ignores signals and dies with this one.
/// `collect` starts the rank, whose first step is restore_signals() of the argument. Stops and goes
/// on with the child. For a single-threaded process that then ends: signals stay blocked. Failure:
/// no process can be started, and `collect` has not run.
Result<AppEnd> run_without_signals(const std::function<int(const std::string& signals)>& collect);

/// Sets this process's mask, and which signals it ignores, to those of run_without_signals()'s
/// caller. Signals that came since the rank was forked are delivered now. An invalid text changes
/// nothing.
void restore_signals(const std::string& signals);

}  // namespace heddle::launch
