// SPDX-License-Identifier: MIT
#pragma once

#include <chrono>
#include <string>
#include <utility>
#include <vector>

#include "base/fd.hpp"
#include "launch/session/messages.hpp"

namespace heddle::launch {

/// The ranks of this user on this node, by their environment, which every launcher sets: of the
/// Slurm step `J.S`, of the job `J`, of a Rank::job, or all for an empty `of`. A rank is the oldest
/// of the processes with its number, so that its children are not taken for it. Agents, daemons and
/// whatever else runs in a step of a session or of fs-ship is none. Sorted by job and rank. A
/// process whose environment cannot be read (setuid, not dumpable) is none.
std::vector<Rank> ranks_here(const std::string& of);
/// Rank::job of the process `pid`; empty: no launcher started it, or it does not say.
std::string job_of(pid_t pid);

/// A process that is no child of this one, until its end: by pidfd, before Linux 5.3 by pid and
/// start.
class OtherProcess {
 public:
  /// ESRCH: there is none.
  static Result<OtherProcess> open(pid_t pid);
  /// For poll(2), readable at its end; -1 before Linux 5.3: ask has_ended() each kPause then.
  int fd() const { return fd_.get(); }
  bool has_ended() const;
  static constexpr std::chrono::milliseconds kPause{500};

 private:
  OtherProcess(Fd fd, pid_t pid, std::uint64_t started)
      : fd_(std::move(fd)), pid_(pid), started_(started) {}
  Fd fd_;
  pid_t pid_;
  std::uint64_t started_;
};

/// Sends `signal` (0: only asks) to the process that `rank` was found as. false: it has ended.
Result<bool> signal_rank(const Rank& rank, int signal);

/// What daemons have in their environment: the session's directory on this node.
inline constexpr char kDirectoryVariable[] = "HEDDLE_SESSION_DIR";

/// Ends the processes of this user here that were started with `variable`=`value` in their
/// environment: of a session whose agent was killed, of one daemon. SIGTERM, after two seconds
/// SIGKILL.
void end_marked(const std::string& variable, const std::string& value);

/// Ends all descendants of this process, a subreaper: SIGTERM, after `grace` SIGKILL; reaps them.
/// A pid cannot have another process meanwhile: only own children are killed by pid, and theirs are
/// own ones as soon as these are gone.
void end_descendants(std::chrono::milliseconds grace);

}  // namespace heddle::launch
