// SPDX-License-Identifier: MIT
#include "fuseovl/mount/kernel_mount.hpp"

#include <fcntl.h>
#include <sys/mount.h>
#include <sys/syscall.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <cstdlib>
#include <sstream>

#include "base/child.hpp"
#include "base/fuse_device.hpp"

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

// <linux/mount.h> and glibc 2.36's <sys/mount.h> cannot be included together, and older ones do not
// declare open_tree(2) at all.
constexpr unsigned kOpenTreeClone = 1;

}  // namespace

Result<void> mount_fuse_device(int device, const std::string& mount_point) {
  const std::string options =
      "fd=" + std::to_string(device) + ",rootmode=40000,user_id=" + std::to_string(::getuid()) +
      ",group_id=" + std::to_string(::getgid()) +
      ",default_permissions,allow_other,max_read=" + std::to_string(kMaxRead);
  if (::mount(kMountSource, mount_point.c_str(), kMountType, MS_RDONLY | MS_NOSUID | MS_NODEV,
              options.c_str()) != 0)
    return fail_errno(mount_point, "cannot mount");
  return {};
}

Result<Fd> mount_fuse(const std::string& mount_point) {
  auto device = open_fuse_device();
  if (!device) return device;
  auto mounted = mount_fuse_device(device->get(), mount_point);
  if (mounted) return device;
  if (mounted.error().code() != EPERM) return fail(std::move(mounted.error()));
  return fusermount_mount(mount_point, fusermount_options());
}

std::string fusermount_options() {
  std::string options = std::string("ro,nosuid,nodev,default_permissions,fsname=") + kMountSource +
                        ",subtype=heddle,max_read=" + std::to_string(kMaxRead);
  if (users_may_allow_other() || ::geteuid() == 0) options += ",allow_other";
  return options;
}

Result<Fd> copy_mount(const std::string& mount_point) {
  // The root of a mount is reached without asking its file system: its daemon may be the caller.
  Fd tree(static_cast<int>(::syscall(SYS_open_tree, AT_FDCWD, mount_point.c_str(),
                                     kOpenTreeClone | unsigned{O_CLOEXEC})));
  if (!tree) return fail_errno(mount_point, "cannot copy the mount");
  return tree;
}

Result<void> unmount_fuse(const std::string& mount_point, Unmount how,
                          std::chrono::milliseconds limit) {
  const int flags = UMOUNT_NOFOLLOW | (how == Unmount::detach ? MNT_DETACH : 0);
  if (::umount2(mount_point.c_str(), flags) == 0) return {};
  if (errno == EPERM) return fusermount_unmount(mount_point, how == Unmount::detach, limit);
  return fail_errno(mount_point, "cannot unmount");
}

bool is_dead(const std::string& mount_point) {
  // Names and attributes are answered from the kernel's cache, even for a dead mount; statfs never
  // is.
  const auto asked = run_in_child(std::chrono::milliseconds(500), {}, [&]() -> Result<void> {
    struct statfs status {};
    if (::statfs(mount_point.c_str(), &status) != 0) return fail_errno(mount_point, "is dead");
    return {};
  });
  return !asked && asked.error().code() == ENOTCONN;
}

Result<std::string> resolve_mount_point(const std::string& path) {
  const auto real = [](const std::string& name) -> Result<std::string> {
    char* resolved = ::realpath(name.c_str(), nullptr);
    if (!resolved) return fail_errno(name, "cannot find the mount point");
    std::string out = resolved;
    std::free(resolved);
    return out;
  };
  std::string plain = path;
  while (plain.size() > 1 && plain.back() == '/') plain.pop_back();
  const auto slash = plain.rfind('/');
  const std::string last = slash == std::string::npos ? plain : plain.substr(slash + 1);
  if (!last.empty() && last != "." && last != "..") {
    // realpath() of a dead mount is ENOTCONN, so a mount point is looked for by its parent first.
    auto parent = real(slash == std::string::npos ? "."
                       : slash == 0               ? "/"
                                                  : plain.substr(0, slash));
    if (!parent) return fail_errno(path, "cannot find the mount point", parent.error().code());
    const std::string candidate = (*parent == "/" ? "" : *parent) + "/" + last;
    auto mounted = find_mount(candidate);
    if (!mounted) return fail(std::move(mounted.error()));
    if (*mounted) return candidate;
  }
  return real(path);
}

}  // namespace heddle
