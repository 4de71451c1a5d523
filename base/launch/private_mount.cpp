// SPDX-License-Identifier: MIT
#include "base/launch/private_mount.hpp"

#include <fcntl.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <fmt/format.h>

#include "base/fuse_device.hpp"
#include "base/mount_namespace.hpp"

namespace heddle {
namespace {

Result<void> write_proc(const std::string& path, const std::string& text) {
  auto fd = open_file(path, O_WRONLY);
  if (!fd) return fail(std::move(fd.error()));
  return write_all(fd->get(), text, path);
}

/// Maps the caller to himself (not to root: `id`, file owners and exec'ed programs' privileges look
/// as outside). setgroups must be denied before an unprivileged gid_map, user_namespaces(7).
Result<void> enter_user_namespace(int flags) {
  const uid_t uid = ::geteuid();
  const gid_t gid = ::getegid();
  if (::unshare(CLONE_NEWUSER | flags) != 0)
    return fail_errno("", "cannot make a user namespace", errno,
                      "user namespaces may be disabled here (sysctl user.max_user_namespaces, "
                      "kernel.unprivileged_userns_clone)");
  if (auto done = write_proc("/proc/self/uid_map", fmt::format("{0} {0} 1\n", uid)); !done)
    return done;
  if (auto done = write_proc("/proc/self/setgroups", "deny"); !done) return done;
  return write_proc("/proc/self/gid_map", fmt::format("{0} {0} 1\n", gid));
}

}  // namespace

NamespaceKind usable_namespace_kind() {
  // Asking the kernel would move us; geteuid() errs only for a root without CAP_SYS_ADMIN, who then
  // reads why in mount_privately()'s error.
  return ::geteuid() == 0 ? NamespaceKind::mount : NamespaceKind::user_and_mount;
}

Result<void> enter_private_namespace(NamespaceKind kind) {
  if (kind == NamespaceKind::mount) return enter_mount_namespace();
  if (auto entered = enter_user_namespace(CLONE_NEWNS); !entered) return entered;
  return make_mounts_private();
}

Result<Fd> mount_privately(const std::string& mount_point, NamespaceKind kind) {
  if (auto entered = enter_private_namespace(kind); !entered)
    return fail(std::move(entered.error()));
  // Opened here, after unshare: FUSE wants the descriptor's user namespace to be the mount's.
  auto fuse = open_fuse_device();
  if (!fuse) return fuse;
  const std::string options = fmt::format(
      "fd={},rootmode=40000,user_id={},group_id={},default_permissions,allow_other,"
      "max_read=1048576",
      fuse->get(), ::geteuid(), ::getegid());
  if (::mount("heddle", mount_point.c_str(), "fuse.heddle", MS_RDONLY | MS_NOSUID | MS_NODEV,
              options.c_str()) != 0)
    return fail_errno(mount_point, "cannot mount");
  return std::move(*fuse);
}

Result<void> attach_privately(int tree, const std::string& mount_point) {
  // Not declared by every glibc, and <linux/mount.h> cannot stand beside <sys/mount.h>.
  constexpr unsigned kMoveMountEmptyPath = 4;  // MOVE_MOUNT_F_EMPTY_PATH
  if (auto entered = enter_mount_namespace(); !entered) return entered;
  if (::syscall(SYS_move_mount, tree, "", AT_FDCWD, mount_point.c_str(), kMoveMountEmptyPath) != 0)
    return fail_errno(mount_point, "cannot attach the mount");
  return {};
}

}  // namespace heddle
