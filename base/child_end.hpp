// SPDX-License-Identifier: MIT
#pragma once

#include <sys/types.h>

#include "base/fd.hpp"

namespace heddle {

/// A descriptor that poll(2) finds readable when the child process `pid` has ended, which is the
/// caller's to reap: pidfd_open(2), before Linux 5.3 an event of a thread that waits for the child.
Result<Fd> watch_child_end(pid_t pid);

}  // namespace heddle
