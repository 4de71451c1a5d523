// SPDX-License-Identifier: MIT
#include "fuseovl/mount/kernel_mount.hpp"

#include <fcntl.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <filesystem>
#include <sstream>

#include "base/child.hpp"
#include "base/mounts.hpp"
#include "base/try.hpp"

namespace heddle {
namespace {

bool users_may_allow_other() {
  const auto text = read_file("/etc/fuse.conf", 1U << 20);
  if (!text) return false;
  std::istringstream lines(*text);
  for (std::string line; std::getline(lines, line);) {
    const auto first = line.find_first_not_of(" \t");
    if (first != std::string::npos && line.compare(first, 16, "user_allow_other") == 0) return true;
  }
  return false;
}

// <linux/mount.h>, which glibc's <sys/mount.h> excludes; the last is newer than both.
constexpr unsigned kFromEmptyPath = 0x4;
constexpr unsigned kToEmptyPath = 0x40;
constexpr unsigned kBeneath = 0x200;

bool move_tree(int tree, const std::string& mount_point, unsigned flags) {
  return ::syscall(SYS_move_mount, tree, "", AT_FDCWD, mount_point.c_str(),
                   kFromEmptyPath | flags) == 0;
}

}  // namespace

Result<void> mount_fuse_device(int device, const std::string& mount_point, Writes writes) {
  const std::string options =
      "fd=" + std::to_string(device) + ",rootmode=40000,user_id=" + std::to_string(::getuid()) +
      ",group_id=" + std::to_string(::getgid()) +
      ",default_permissions,max_read=" + std::to_string(kMaxRead) +
      // With it, only processes in the mount's user namespace have access; without it all of its
      // user's have (fs/fuse/dir.c, fuse_allow_current_process), as the ranks of a job that share
      // the mount, each in a user namespace of its own.
      (::getuid() == 0 ? ",allow_other" : "");
  const unsigned long read_only = writes == Writes::refused_by_kernel ? MS_RDONLY : 0;
  if (::mount(kMountSource, mount_point.c_str(), kMountType, read_only | MS_NOSUID | MS_NODEV,
              options.c_str()) != 0)
    return fail_errno(mount_point, "cannot mount");
  return {};
}

Result<Fd> mount_fuse(const std::string& mount_point, bool by_fusermount, Writes writes) {
  if (!by_fusermount) {
    auto device = TRY(open_fuse_device());
    auto mounted = mount_fuse_device(device.get(), mount_point, writes);
    if (mounted) return device;
    if (mounted.error().code() != EPERM) return fail(std::move(mounted.error()));
  }
  std::string options = std::string(writes == Writes::refused_by_kernel ? "ro" : "rw") +
                        ",nosuid,nodev,default_permissions,fsname=" + kMountSource +
                        ",subtype=heddle,max_read=" + std::to_string(kMaxRead);
  if (users_may_allow_other() || ::geteuid() == 0) options += ",allow_other";
  return fusermount_mount(mount_point, options);
}

Result<void> unmount_fuse(const std::string& mount_point, Unmount how,
                          std::chrono::milliseconds limit) {
  const int flags = UMOUNT_NOFOLLOW | (how == Unmount::detach ? MNT_DETACH : 0);
  if (::umount2(mount_point.c_str(), flags) == 0) return {};
  if (errno == EPERM) return fusermount_unmount(mount_point, how == Unmount::detach, limit);
  return fail_errno(mount_point, "cannot unmount");
}

bool is_heddle_mount(const std::string& path) {
  const auto mounted = find_mount(path);
  return mounted && *mounted && (*mounted)->type == kMountType;
}

bool is_dead(const std::string& mount_point) {
  // The kernel answers names and attributes of a dead mount from its cache, but not statfs.
  const auto asked = run_in_child(std::chrono::milliseconds(500), {}, [&]() -> Result<void> {
    struct statfs status {};
    if (::statfs(mount_point.c_str(), &status) != 0) return fail_errno(mount_point, "is dead");
    return {};
  });
  return !asked && asked.error().code() == ENOTCONN;
}

Result<std::string> resolve_mount_point(const std::string& path) {
  const auto real = [](const std::string& name) -> Result<std::string> {
    std::error_code error;
    const auto resolved = std::filesystem::canonical(name, error);
    if (error) return fail_errno(name, "cannot find the mount point", error.value());
    return resolved.string();
  };
  std::string plain = path;
  while (plain.size() > 1 && plain.back() == '/') plain.pop_back();
  const auto slash = plain.rfind('/');
  const std::string last = slash == std::string::npos ? plain : plain.substr(slash + 1);
  if (!last.empty() && last != "." && last != "..") {
    // realpath() of a dead mount fails with ENOTCONN, so only the parent is resolved.
    auto parent = real(slash == std::string::npos ? "."
                       : slash == 0               ? "/"
                                                  : plain.substr(0, slash));
    if (!parent) return fail_errno(path, "cannot find the mount point", parent.error().code());
    const std::string candidate = (*parent == "/" ? "" : *parent) + "/" + last;
    if (TRY(find_mount(candidate))) return candidate;
  }
  return real(path);
}

Result<Stacking> mount_stacking() {
  // The kernel checks the right to mount, then flags, then descriptors (fs/namespace.c,
  // move_mount).
  (void)::syscall(SYS_move_mount, -1, "", -1, "", kFromEmptyPath | kToEmptyPath | kBeneath);
  if (errno == EPERM) return fail_errno("", "cannot mount", EPERM);
  return errno == EBADF ? Stacking::beneath : Stacking::on_top;
}

Result<void> exchange_mount(int tree, const std::string& mount_point) {
  if (move_tree(tree, mount_point, kBeneath)) {
    if (::umount2(mount_point.c_str(), MNT_DETACH | UMOUNT_NOFOLLOW) == 0) return {};
    const auto error = Error::from_errno(mount_point, "cannot detach the old mount");
    // Else the new mount and its daemon would stay beneath the old one.
    (void)::umount2(("/proc/self/fd/" + std::to_string(tree)).c_str(), MNT_DETACH);
    return fail(error);
  }
  if (move_tree(tree, mount_point, 0)) return {};
  return fail_errno(mount_point, "cannot put the new mount in place");
}

dev_t mount_device(int file) {
  struct statx known {};
  if (::statx(file, "", AT_EMPTY_PATH | AT_STATX_DONT_SYNC, STATX_TYPE, &known) != 0) return 0;
  return ::makedev(known.stx_dev_major, known.stx_dev_minor);
}

}  // namespace heddle
