// SPDX-License-Identifier: MIT
#include "base/mount_namespace.hpp"

#include <sched.h>
#include <sys/mount.h>

#include <cerrno>

namespace heddle {

Result<void> enter_mount_namespace() {
  if (::unshare(CLONE_NEWNS) != 0) return fail_errno("", "cannot make a mount namespace");
  return make_mounts_private();
}

Result<void> make_mounts_private() {
  if (::mount(nullptr, "/", nullptr, MS_REC | MS_SLAVE, nullptr) == 0) return {};
  const int error = errno;
  const char* hint =
      error == EINVAL
          ? "the root of a plain chroot(2) is no mount: mount --bind it onto itself, then chroot"
          : "";
  return fail_errno("/", "cannot make the mounts private", error, hint);
}

}  // namespace heddle
