// SPDX-License-Identifier: MIT
#pragma once

// --hold: ranks wait before their program starts. One a node looks at CACHE/hold/ID, a directory of
// this user's that all nodes see, so that a release needs no connection:
//   state   `hold`, then `release` or `kill`, written in place
//   alive   a number that fs-launch changes each second
//   NODE    a line for each rank that is held there: rank, size, pid, job
// agent: the rank waits in fs-launch's agent, before anything else. exec: it is stopped (SIGSTOP)
// after the exec of its program, with only that and ld.so mapped; a process beside it, which traced
// the exec and let go, waits and continues it, also for a signal that is to end it. Without a
// release a rank goes on, or ends, when the directory is gone or `alive` is unchanged for ten
// seconds: the tool, or fs-launch, has ended.

#include <chrono>
#include <cstdint>
#include <string>

#include "base/child.hpp"
#include "base/result.hpp"
#include "base/temp_dir.hpp"

namespace heddle::launch {

struct HoldSettings {
  std::string mode;                 ///< agent, exec; empty: no hold
  std::string on_exit = "release";  ///< or kill: when the tool has ended
  std::string directory;
};

/// In a rank: returns when it is released (agent), or when it will be stopped at its next exec.
/// Does not return if the rank is to end. Where it cannot be traced it is held as by agent.
void hold_rank(const HoldSettings& hold, std::int64_t rank, std::uint64_t size);

/// In fs-launch: the directory of a hold, and a process that shows that the tool lives.
class Hold {
 public:
  /// `id` empty: a new one. `tool`: a pid that stands for the tool; -1: fs-launch itself. After
  /// `limit`, if it is not 0, the hold ends as with the tool.
  static Result<Hold> create(const std::string& id, int tool, const std::string& on_exit,
                             std::chrono::seconds limit);
  const std::string& path() const { return directory_.path(); }

 private:
  Hold(TempDir directory, Child heart)
      : directory_(std::move(directory)), heart_(std::move(heart)) {}
  TempDir directory_;
  Child heart_;
};

/// `fs-launch release ...`. Result: the exit status; exit_no if it is released already.
int release_main(int argc, const char* const* argv);

}  // namespace heddle::launch
