// SPDX-License-Identifier: MIT
#pragma once

#include <sys/syscall.h>

#include "tests/support/test_dir.hpp"

namespace heddle::test {

/// Whether the kernel accepts FUSE_NOTIFY_RESEND (Linux 6.9), which a dead worker's successor
/// needs. Tries it on a mount in a new namespace; true when no mount can be made there.
bool kernel_resends();

/// Whether a system call newer than Linux 4.18 exists; not under ./dev test --old-kernel.
/// SYS_open_tree stands for all calls that came with it.
bool kernel_has(long call);
/// PIDFD_THREAD (Linux 6.9) shows a process's death while one of its threads still hangs.
bool kernel_tells_of_leaders();

}  // namespace heddle::test

#define HEDDLE_NEEDS_RESEND()            \
  if (!::heddle::test::kernel_resends()) \
  HEDDLE_SKIP("this kernel does not resend requests that a dead process had read")
#define HEDDLE_NEEDS_OPEN_TREE()                  \
  if (!::heddle::test::kernel_has(SYS_open_tree)) \
  HEDDLE_SKIP("needs detached mounts: open_tree(2), Linux 5.2")
#define HEDDLE_NEEDS_OPENAT2() \
  if (!::heddle::test::kernel_has(SYS_openat2)) HEDDLE_SKIP("needs openat2(2), Linux 5.6")
#define HEDDLE_NEEDS_PIDFD_THREAD()               \
  if (!::heddle::test::kernel_tells_of_leaders()) \
  HEDDLE_SKIP("needs PIDFD_THREAD, Linux 6.9: a thread that hangs hides its process's death")
