// SPDX-License-Identifier: MIT
#pragma once

#include <sys/types.h>

#include <chrono>
#include <string>
#include <vector>

namespace heddle {

/// Makes this process the parent of all orphans below it, so that kill_descendants() finds them.
void adopt_orphans();

/// Kills all that descends from this process, but for the process `spared`, and reaps what has
/// become its own, for at most `limit`. Result: the names of those that did not end, since they
/// wait in the kernel.
std::vector<std::string> kill_descendants(std::chrono::milliseconds limit, pid_t spared = 0);

}  // namespace heddle
