// SPDX-License-Identifier: MIT
#pragma once

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
  /// Of this namespace's mounts as they are now.
  explicit LocalFiles(std::vector<MountEntry> mounts);

  /// open(2) with O_CLOEXEC of the absolute `path`. EXDEV: it may be another's file, or a symbolic
  /// link on the way may lead there; nobody was asked.
  Result<Fd> open(const std::string& path, int flags);

 private:
  /// A mount's root; invalid: not local.
  const Fd& root_of(const MountEntry& mount);

  std::vector<MountEntry> mounts_;
  std::uint64_t resolve_;
  std::map<const MountEntry*, Fd> roots_;
};

}  // namespace heddle
