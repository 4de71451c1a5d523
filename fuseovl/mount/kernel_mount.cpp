// SPDX-License-Identifier: MIT
#include "fuseovl/mount/kernel_mount.hpp"

#include <fcntl.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <cstdlib>
#include <sstream>

#include "base/fuse_device.hpp"

namespace heddle {
namespace {

/// Mount points stand in mountinfo with space, tab, newline and backslash as \ooo (proc(5)).
std::string decode_octal(std::string_view text) {
  std::string out;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '\\' && i + 3 < text.size()) {
      out += static_cast<char>((text[i + 1] - '0') * 64 + (text[i + 2] - '0') * 8 +
                               (text[i + 3] - '0'));
      i += 3;
    } else {
      out += text[i];
    }
  }
  return out;
}

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

Result<std::vector<MountEntry>> list_mounts() {
  auto text = read_file("/proc/self/mountinfo");
  if (!text) return fail(std::move(text.error()));
  std::vector<MountEntry> out;
  std::istringstream lines(*text);
  for (std::string line; std::getline(lines, line);) {
    // 36 35 98:0 /root /mount/point options optional... - type source super-options (proc(5))
    std::istringstream fields(line);
    std::string id, parent, device, root, point, word;
    fields >> id >> parent >> device >> root >> point;
    while (fields >> word && word != "-") {
    }
    MountEntry entry;
    entry.point = decode_octal(point);
    fields >> entry.type >> entry.source >> entry.options;
    const auto colon = device.find(':');
    entry.device =
        ::makedev(static_cast<unsigned>(std::strtoul(device.c_str(), nullptr, 10)),
                  static_cast<unsigned>(std::strtoul(device.c_str() + colon + 1, nullptr, 10)));
    out.push_back(std::move(entry));
  }
  return out;
}

Result<std::optional<MountEntry>> find_mount(const std::string& path) {
  auto mounts = list_mounts();
  if (!mounts) return fail(std::move(mounts.error()));
  std::optional<MountEntry> found;
  for (auto& mount : *mounts)
    if (mount.point == path) found = std::move(mount);
  return found;
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
