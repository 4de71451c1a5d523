// SPDX-License-Identifier: MIT
#include "fuseovl/mount/mount_exchange.hpp"

#include <fcntl.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include "fuseovl/mount/kernel_mount.hpp"

namespace heddle {
namespace {

// <linux/mount.h>, which glibc's <sys/mount.h> excludes; the last is newer than both.
constexpr unsigned kCloexec = 1;  // of fsopen(2) and fsmount(2)
constexpr unsigned kSetFlag = 0;
constexpr unsigned kSetString = 1;
constexpr unsigned kCreate = 6;
constexpr unsigned kReadOnlyNoSuidNoDev = 0x1 | 0x2 | 0x4;
constexpr unsigned kFromEmptyPath = 0x4;
constexpr unsigned kToEmptyPath = 0x40;
constexpr unsigned kBeneath = 0x200;

bool move_tree(int tree, const std::string& mount_point, unsigned flags) {
  return ::syscall(SYS_move_mount, tree, "", AT_FDCWD, mount_point.c_str(),
                   kFromEmptyPath | flags) == 0;
}

}  // namespace

Result<Stacking> mount_stacking() {
  // The kernel looks at the right to mount first, then at the flags, then at descriptors, of which
  // these are none (fs/namespace.c, move_mount).
  (void)::syscall(SYS_move_mount, -1, "", -1, "", kFromEmptyPath | kToEmptyPath | kBeneath);
  if (errno == EPERM) return fail_errno("", "cannot mount", EPERM);
  return errno == EBADF ? Stacking::beneath : Stacking::on_top;
}

Result<Fd> new_fuse_tree(int device) {
  const Fd context(static_cast<int>(::syscall(SYS_fsopen, "fuse", kCloexec)));
  bool good = context.valid();
  const auto set = [&](const char* key, const std::string& value) {
    good = good && ::syscall(SYS_fsconfig, context.get(), kSetString, key, value.c_str(), 0) == 0;
  };
  set("source", kMountSource);
  set("subtype", "heddle");
  set("fd", std::to_string(device));
  set("rootmode", "40000");
  set("user_id", std::to_string(::getuid()));
  set("group_id", std::to_string(::getgid()));
  set("max_read", std::to_string(kMaxRead));
  for (const char* flag : {"default_permissions", "allow_other"})
    good = good && ::syscall(SYS_fsconfig, context.get(), kSetFlag, flag, nullptr, 0) == 0;
  good = good && ::syscall(SYS_fsconfig, context.get(), kCreate, nullptr, nullptr, 0) == 0;
  Fd tree(
      good ? static_cast<int>(::syscall(SYS_fsmount, context.get(), kCloexec, kReadOnlyNoSuidNoDev))
           : -1);
  if (!tree) return fail_errno("", "cannot mount");
  return tree;
}

Result<void> exchange_mount(int tree, const std::string& mount_point) {
  if (move_tree(tree, mount_point, kBeneath)) {
    if (::umount2(mount_point.c_str(), MNT_DETACH | UMOUNT_NOFOLLOW) == 0) return {};
    return fail_errno(mount_point, "cannot take the old mount off");
  }
  if (move_tree(tree, mount_point, 0)) return {};
  return fail_errno(mount_point, "cannot mount");
}

dev_t mount_device(int file) {
  struct statx known {};
  if (::statx(file, "", AT_EMPTY_PATH | AT_STATX_DONT_SYNC, STATX_TYPE, &known) != 0) return 0;
  return ::makedev(known.stx_dev_major, known.stx_dev_minor);
}

}  // namespace heddle
