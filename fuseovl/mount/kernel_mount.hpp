// SPDX-License-Identifier: MIT
#pragma once

// The kernel's side of a FUSE mount, without libfuse: fs-gen mounts in its program's namespace with
// these, and hands the device to fs-mount.

#include <string>

#include "base/fd.hpp"
#include "base/mounts.hpp"
#include "fuseovl/mount/fusermount.hpp"

namespace heddle {

inline constexpr const char* kMountType = "fuse.heddle";
inline constexpr const char* kMountSource = "heddle";
/// Of each mount and session: the kernel asks for at most as much in one READ.
inline constexpr unsigned kMaxRead = 1U << 20;

/// Mounts `device` on the directory `mount_point` by mount(2): type fuse.heddle, read only, nosuid,
/// nodev, default_permissions, allow_other. EPERM without the right to mount in this namespace. The
/// device must come from a process of this user namespace: the kernel says EINVAL else.
Result<void> mount_fuse_device(int device, const std::string& mount_point);

/// open_fuse_device() and mount_fuse_device(); for a user who may not mount, or if wanted, by
/// fusermount3, with allow_other only where /etc/fuse.conf lets users have it.
Result<Fd> mount_fuse(const std::string& mount_point, bool by_fusermount = false);

/// A detached copy of the mount on `mount_point`, for another mount namespace; its file system,
/// which is asked nothing, lives as long as the last of them.
Result<Fd> copy_mount(const std::string& mount_point);

enum class Unmount : std::uint8_t {
  now,     ///< EBUSY while somebody uses it
  detach,  ///< gone from the tree at once, ended when the last user has gone
};
/// By umount2(2), or by fusermount3 for a user who may not; ETIMEDOUT: that has not ended for
/// `limit`.
Result<void> unmount_fuse(const std::string& mount_point, Unmount how,
                          std::chrono::milliseconds limit = kFusermountPatience);

/// Whether a mount of fs-mount's stands at exactly `path`.
bool is_heddle_mount(const std::string& path);
/// Whether nobody answers for the mount any more. A daemon that is stopped, or says nothing for
/// half a second, counts as alive: it may go on.
bool is_dead(const std::string& mount_point);

/// `path` absolute and free of links as the kernel spells it, without touching what is mounted
/// there when its parent can be resolved. Fails as realpath(3).
Result<std::string> resolve_mount_point(const std::string& path);

// How one mount takes another's place without a moment in which nothing is there: the new one is
// made detached, put beneath the old (Linux 6.5), and the old one taken off. Whoever has a file or
// directory of the old one keeps it; its file system ends with the last of them.

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
