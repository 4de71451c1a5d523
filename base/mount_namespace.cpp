// SPDX-License-Identifier: MIT
#include "base/mount_namespace.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sched.h>
#include <sys/mount.h>
#include <unistd.h>

#include "base/fd.hpp"
#include "base/try.hpp"

namespace heddle {
namespace {

Result<void> write_proc(const std::string& path, const std::string& text) {
  const Fd fd = TRY(open_file(path, O_WRONLY));
  return write_all(fd.get(), text, path);
}

/// Maps the caller to itself (not to root: `id`, file owners and exec'ed programs' privileges look
/// as outside). setgroups must be denied before an unprivileged gid_map, user_namespaces(7).
Result<void> enter_user_namespace(int flags) {
  const uid_t uid = ::geteuid();
  const gid_t gid = ::getegid();
  if (::unshare(CLONE_NEWUSER | flags) != 0)
    return fail_errno("", "cannot make a user namespace", errno,
                      "user namespaces may be disabled here (sysctl user.max_user_namespaces, "
                      "kernel.unprivileged_userns_clone)");
  TRY(write_proc("/proc/self/uid_map", fmt::format("{0} {0} 1\n", uid)));
  TRY(write_proc("/proc/self/setgroups", "deny"));
  return write_proc("/proc/self/gid_map", fmt::format("{0} {0} 1\n", gid));
}

/// What is mounted outside later still arrives (rslave), what is mounted here does not leave.
Result<void> make_mounts_private() {
  if (::mount(nullptr, "/", nullptr, MS_REC | MS_SLAVE, nullptr) == 0) return {};
  const int error = errno;
  const char* hint =
      error == EINVAL
          ? "the root of a plain chroot(2) is no mount: mount --bind it onto itself, then chroot"
          : "";
  return fail_errno("/", "cannot make the mounts private", error, hint);
}

}  // namespace

NamespaceKind usable_namespace_kind() {
  // Asking the kernel would move us; geteuid() errs only for a root without CAP_SYS_ADMIN, for whom
  // enter_private_namespace()'s error says why.
  return ::geteuid() == 0 ? NamespaceKind::mount : NamespaceKind::user_and_mount;
}

Result<void> enter_private_namespace(NamespaceKind kind) {
  if (kind == NamespaceKind::user_and_mount)
    TRY(enter_user_namespace(CLONE_NEWNS));
  else if (::unshare(CLONE_NEWNS) != 0)
    return fail_errno("", "cannot make a mount namespace");
  return make_mounts_private();
}

}  // namespace heddle
