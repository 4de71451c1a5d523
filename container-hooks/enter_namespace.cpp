// SPDX-License-Identifier: MIT
#include "container-hooks/enter_namespace.hpp"

#include <fcntl.h>
#include <sched.h>
#include <sys/stat.h>

namespace heddle {
namespace {

Result<Fd> open_namespace(pid_t pid, const char* kind) {
  const std::string path = "/proc/" + std::to_string(pid) + "/ns/" + kind;
  auto fd = open_file(path, O_RDONLY);
  if (fd) return fd;
  return fail_errno(path, "cannot enter the container", fd.error().code(),
                    fd.error().code() == EACCES
                        ? "the runtime hides its process: use the stage createContainer"
                        : "");
}

bool is_own_user_namespace(const Fd& other) {
  struct stat theirs {};
  struct stat ours {};
  return ::fstat(other.get(), &theirs) == 0 && ::stat("/proc/self/ns/user", &ours) == 0 &&
         theirs.st_dev == ours.st_dev && theirs.st_ino == ours.st_ino;
}

}  // namespace

Result<void> enter_mount_namespace(pid_t pid) {
  if (pid <= 1)
    return fail("the container's state", "cannot use",
                "its pid is " + std::to_string(pid) + ", which is of another namespace",
                "install the hook for this stage: --stage createContainer");
  auto mounts = open_namespace(pid, "mnt");
  if (!mounts) return fail(std::move(mounts.error()));
  auto users = open_namespace(pid, "user");
  if (!users) return fail(std::move(users.error()));
  // First as we are: root, and rootless podman's root, keep the rights of their own namespace, and
  // FUSE's passthrough is only for those of the first one.
  if (::setns(mounts->get(), CLONE_NEWNS) == 0) return {};
  if (errno != EPERM || is_own_user_namespace(*users))
    return fail_errno("", "cannot enter the container's mount namespace");
  if (::setns(users->get(), CLONE_NEWUSER) != 0)
    return fail_errno("", "cannot enter the container's user namespace");
  if (::setns(mounts->get(), CLONE_NEWNS) != 0)
    return fail_errno("", "cannot enter the container's mount namespace");
  return {};
}

}  // namespace heddle
