// SPDX-License-Identifier: MIT
#pragma once

#include <sys/types.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>

namespace heddle::launch {

/// How many ranks a job has of which none reports, since all are static: a thread looks at this
/// node's processes for one that has `mark` in HEDDLE_LAUNCH, and at Slurm's steps for the one of
/// the process `srun` (0: the launcher is another), until it finds one or this process ends. Of
/// other launchers it sees no rank that is setuid or runs on another node, and of none a job that
/// ends at once. It inherits the signal mask. Result: what it finds, at first 0.
std::shared_ptr<const std::atomic<std::uint64_t>> watch_ranks(std::string mark, pid_t srun);

}  // namespace heddle::launch
