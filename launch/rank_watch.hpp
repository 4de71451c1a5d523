// SPDX-License-Identifier: MIT
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

namespace heddle::launch {

/// What is seen of a job beside its reports.
struct SeenJob {
  std::uint64_t ranks = 0;  ///< 0: not known
  /// Of Slurm's step, or those on which remote shells start daemons of the launcher; empty: not
  /// known.
  std::vector<std::string> nodes;
  bool others_only = false;  ///< `nodes` are all but this one
};

/// Looks for a job's ranks in a thread, until it has found them or this process ends.
class RankWatch {
 public:
  /// Looks at this node's processes for those that have `mark` in HEDDLE_LAUNCH, ranks and remote
  /// shells, and at Slurm's steps for the one of the process `srun` (0: the launcher is another).
  /// Of other launchers it sees no rank that is setuid or runs on another node, and of none a job
  /// that ends at once. The thread inherits the signal mask.
  RankWatch(std::string mark, pid_t srun);
  /// What was found until now.
  SeenJob seen() const;

 private:
  struct Shared {
    mutable std::mutex mutex;
    SeenJob job;
  };
  std::shared_ptr<Shared> shared_ = std::make_shared<Shared>();
};

}  // namespace heddle::launch
