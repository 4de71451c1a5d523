// SPDX-License-Identifier: MIT
#pragma once

#include <sys/syscall.h>

#include "tests/support/test_dir.hpp"

namespace heddle::test {

/// What this kernel takes from a FUSE server, asked of a mount in a namespace of its own. True
/// where none can be made: whoever needs one says so by itself.
bool kernel_resends();  ///< FUSE_NOTIFY_RESEND (Linux 6.9): a dead worker can be followed

/// Whether there is a system call that came after Linux 4.18: not on an older kernel, nor under
/// ./dev test --old-kernel. SYS_open_tree stands for all that came with it.
bool kernel_has(long call);
/// PIDFD_THREAD (Linux 6.9): a process's death is seen while a thread of it still hangs.
bool kernel_tells_of_leaders();

}  // namespace heddle::test

#define HEDDLE_NEEDS_RESEND()            \
  if (!::heddle::test::kernel_resends()) \
  HEDDLE_SKIP("this kernel sends no request again that a dead process had read")
#define HEDDLE_NEEDS_OPEN_TREE()                  \
  if (!::heddle::test::kernel_has(SYS_open_tree)) \
  HEDDLE_SKIP("needs detached mounts: open_tree(2), Linux 5.2")
#define HEDDLE_NEEDS_OPENAT2() \
  if (!::heddle::test::kernel_has(SYS_openat2)) HEDDLE_SKIP("needs openat2(2), Linux 5.6")
#define HEDDLE_NEEDS_PIDFD_THREAD()               \
  if (!::heddle::test::kernel_tells_of_leaders()) \
  HEDDLE_SKIP("needs PIDFD_THREAD, Linux 6.9: a thread that hangs hides its process's death")
