// SPDX-License-Identifier: MIT
#include "fuseovl/leave_tree.hpp"

#include <sys/mount.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace heddle {
namespace {

/// Covered in our namespace alone. Every system has it, and nobody has changed his folder to it.
constexpr const char* kCovered = "/proc";

}  // namespace

Result<void> leave_tree() {
  if (::mount("heddle", kCovered, "tmpfs", MS_NOSUID | MS_NODEV | MS_NOEXEC, "size=4k,mode=555") !=
      0)
    return fail_errno(kCovered, "cannot mount an empty folder");
  // pivot_root(2), "pivot_root(".", ".")": the old root lies upon the new one and is taken off.
  if (::chdir(kCovered) != 0 || ::syscall(SYS_pivot_root, ".", ".") != 0) {
    const auto error = Error::from_errno("/", "cannot change the root");
    (void)::chdir("/");
    (void)::umount2(kCovered, MNT_DETACH);
    return fail(error);
  }
  (void)::umount2(".", MNT_DETACH);
  (void)::chdir("/");
  return {};
}

}  // namespace heddle
