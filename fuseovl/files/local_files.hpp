// SPDX-License-Identifier: MIT
#pragma once

#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "fuseovl/mount/kernel_mount.hpp"

namespace heddle {

/// Where a file system is mounted that `path` lies on by its name, nullptr: nowhere; what is
/// mounted is not asked, and symbolic links are not followed.
const MountEntry* mount_of(std::string_view path, const std::vector<MountEntry>& mounts);

/// Opens files that lie on this node's own disks and memory for certain: no server is asked on the
/// way to them, nor for them.
class LocalFiles {
 public:
  /// Whether the source of a mount (`/dev/sda1`) is a disk of this node alone.
  using DiskCheck = std::function<bool(const std::string& source)>;
  /// By this namespace's mounts as they are now.
  LocalFiles();
  /// By these. `is_disk`: is_own_disk() (own_disk.hpp) if none.
  explicit LocalFiles(std::vector<MountEntry> mounts, DiskCheck is_disk = {});

  /// open(2) with O_CLOEXEC of the absolute `path`. EXDEV: it may be another's file, or a symbolic
  /// link on the way may lead there; nobody was asked.
  Result<Fd> open(const std::string& path, int flags);
  /// As the function of that name (base/open_regular.hpp), and EXDEV as open().
  Result<Fd> open_regular(const std::string& path);

 private:
  /// A mount's root; invalid: not local.
  const Fd& root_of(const MountEntry& mount);

  std::vector<MountEntry> mounts_;
  DiskCheck is_disk_;
  std::uint64_t resolve_;
  std::map<const MountEntry*, Fd> roots_;
};

}  // namespace heddle
