// SPDX-License-Identifier: MIT
#pragma once

// How one mount takes another's place without a moment in which nothing is there: the new one is
// made detached, put beneath the old (Linux 6.5), and the old one taken off. Whoever has a file or
// directory of the old one keeps it; its file system ends with the last of them.

#include <string>

#include "base/fd.hpp"

namespace heddle {

enum class Stacking : std::uint8_t {
  beneath,  ///< the old one can be taken off when the new one is there
  on_top,   ///< before Linux 6.5: the old one stays beneath the new one
};
/// What the kernel can do; EPERM: this process may not mount in its namespace.
Result<Stacking> mount_stacking();

/// A FUSE file system over `device`, mounted nowhere yet, as mount_fuse_device() makes it. ENOSYS:
/// before Linux 5.2.
Result<Fd> new_fuse_tree(int device);
/// Puts `tree` in the place of what is mounted on `mount_point`, or over it where that cannot be.
Result<void> exchange_mount(int tree, const std::string& mount_point);

/// st_dev of the files of the mount that `file` is of; 0: unknown. Asks the mount nothing.
dev_t mount_device(int file);

}  // namespace heddle
