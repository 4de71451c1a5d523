// SPDX-License-Identifier: MIT
#include "fuseovl/files/local_files.hpp"

#include <fcntl.h>
#include <linux/openat2.h>
#include <sys/stat.h>

#include <algorithm>
#include <array>

#include "base/open_in_root.hpp"
#include "base/open_regular.hpp"
#include "fuseovl/files/own_disk.hpp"

namespace heddle {
namespace {

bool is_below(std::string_view path, std::string_view folder) {
  return folder == "/" ||
         (path.starts_with(folder) && (path.size() == folder.size() || path[folder.size()] == '/'));
}

bool is_own_disks(const std::string& source) {
  struct stat status {};
  return source.starts_with("/dev/") && ::stat(source.c_str(), &status) == 0 &&
         S_ISBLK(status.st_mode) && is_own_disk(status.st_rdev);
}

/// Kept by this kernel alone. Overlays are not: what they lie over may be anything.
bool is_local(const MountEntry& mount, const LocalFiles::DiskCheck& is_disk) {
  constexpr std::array<std::string_view, 3> kMemory = {"tmpfs", "ramfs", "devtmpfs"};
  constexpr std::array<std::string_view, 6> kDisk = {"ext2", "ext3",  "ext4",
                                                     "xfs",  "btrfs", "f2fs"};
  if (std::ranges::find(kMemory, mount.type) != kMemory.end()) return true;
  return std::ranges::find(kDisk, mount.type) != kDisk.end() && is_disk(mount.source);
}

/// Direct mounts of autofs ask their daemon when a link leads onto them, before the kernel sees
/// that they are another mount.
bool may_ask_a_daemon(const MountEntry& mount) {
  return mount.type == "autofs" && !is_below(mount.point, "/proc");
}

}  // namespace

const MountEntry* mount_of(std::string_view path, const std::vector<MountEntry>& mounts) {
  const MountEntry* longest = nullptr;
  for (const auto& mount : mounts)
    if (is_below(path, mount.point) && (!longest || mount.point.size() >= longest->point.size()))
      longest = &mount;
  return longest;
}

LocalFiles::LocalFiles() : LocalFiles(list_mounts().value_or(std::vector<MountEntry>())) {}

LocalFiles::LocalFiles(std::vector<MountEntry> mounts, DiskCheck is_disk)
    : mounts_(std::move(mounts)),
      is_disk_(is_disk ? std::move(is_disk) : is_own_disks),
      resolve_(RESOLVE_NO_XDEV | RESOLVE_NO_MAGICLINKS) {
  if (std::ranges::any_of(mounts_, may_ask_a_daemon)) resolve_ |= RESOLVE_NO_SYMLINKS;
}

const Fd& LocalFiles::root_of(const MountEntry& mount) {
  const auto [entry, is_new] = roots_.try_emplace(&mount);
  Fd& root = entry->second;
  if (!is_new) return root;
  // The way to it leads over the mounts above it.
  const bool all_local = std::ranges::all_of(mounts_, [&](const MountEntry& above) {
    return !is_below(mount.point, above.point) || is_local(above, is_disk_);
  });
  if (all_local)
    if (auto opened = open_file(mount.point, O_PATH | O_DIRECTORY)) root = std::move(*opened);
  return root;
}

Result<Fd> LocalFiles::open(const std::string& path, int flags) {
  const MountEntry* mount = path.starts_with('/') ? mount_of(path, mounts_) : nullptr;
  if (!mount || !root_of(*mount)) return fail_errno(path, "cannot open", EXDEV);
  // From the root a whole path, or the kernel takes links that begin with `/` for another mount's.
  auto name = std::string_view(path);
  if (mount->point != "/") {
    name.remove_prefix(mount->point.size());
    name.remove_prefix(std::min(name.find_first_not_of('/'), name.size()));
  }
  auto file = open_resolved(root_of(*mount).get(), std::string(name), flags, resolve_);
  if (file) return file;
  const int code = file.error().code();
  // Links that were not followed; no openat2(2) (Linux < 5.6, or forbidden).
  const bool unknown = code == ELOOP || code == ENOSYS || code == EPERM || code == EINVAL;
  return fail_errno(path, "cannot open", unknown ? EXDEV : code);
}

Result<Fd> LocalFiles::open_regular(const std::string& path) {
  const auto handle = open(path, O_PATH);
  if (!handle) return fail(handle.error());
  return open_regular_at(handle->get(), path);
}

}  // namespace heddle
