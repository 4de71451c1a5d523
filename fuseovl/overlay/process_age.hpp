// SPDX-License-Identifier: MIT
#pragma once

#include <sys/types.h>

namespace heddle {

/// Whether `process` began before the process `than` or is it, of those that begin within seconds.
/// Ids grow and begin anew at `pid_max`: with the usual 32768 every few minutes on a busy node.
constexpr bool is_older(pid_t process, pid_t than, pid_t pid_max) {
  const auto further = (process - than + pid_max) % pid_max;
  return further == 0 || further > pid_max / 4;
}

}  // namespace heddle
