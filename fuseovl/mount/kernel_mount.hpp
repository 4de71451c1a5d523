// SPDX-License-Identifier: MIT
#pragma once

// Mounting a FUSE device without libfuse: fs-gen mounts in its program's namespace and passes the
// device to fs-mount.

#include <string>

#include "base/fd.hpp"
#include "base/mount_calls.hpp"
#include "base/mounts.hpp"
#include "fuseovl/mount/fusermount.hpp"

namespace heddle {

inline constexpr const char* kMountType = "fuse.heddle";

/// Who answers attempts to change the mount with EROFS.
enum class Writes : std::uint8_t {
  refused_by_kernel,  ///< the mount is read-only
  /// The mount is not, so that the daemon sees and counts them: for maps with trees, whose users
  /// learn which directories their programs want to write to.
  refused_by_daemon,
};

/// Mounts `device` on the directory `mount_point` by mount(2): type fuse.heddle, nosuid, nodev,
/// default_permissions, for root allow_other. EPERM: no right to mount in this namespace; EINVAL:
/// the device was opened in another user namespace.
Result<void> mount_fuse_device(int device, const std::string& mount_point,
                               Writes writes = Writes::refused_by_kernel);

/// open_fuse_device() and mount_fuse_device(); without the right to mount, or with `by_fusermount`,
/// by fusermount3, with allow_other only where /etc/fuse.conf has user_allow_other.
Result<Fd> mount_fuse(const std::string& mount_point, bool by_fusermount = false,
                      Writes writes = Writes::refused_by_kernel);

enum class Unmount : std::uint8_t {
  now,     ///< EBUSY while a process uses it
  detach,  ///< leaves the tree at once and ends with its last user
};
/// By umount2(2), or without the right to that by fusermount3; ETIMEDOUT: it has not ended within
/// `limit`.
Result<void> unmount_fuse(const std::string& mount_point, Unmount how,
                          std::chrono::milliseconds limit = kFusermountPatience);

/// Whether a mount of fs-mount is at exactly `path`.
bool is_heddle_mount(const std::string& path);
/// Whether the mount's daemon has ended. One that is stopped, or does not answer for half a second,
/// counts as alive.
bool is_dead(const std::string& mount_point);

/// `path` absolute and free of links as the kernel spells it, without touching what is mounted
/// there when its parent can be resolved. Fails as realpath(3).
Result<std::string> resolve_mount_point(const std::string& path);

// An exchange never leaves the mount point empty: the new mount is made detached, moved beneath the
// old one (Linux 6.5), and the old one is detached. Open files and directories of the old mount
// stay valid.

enum class Stacking : std::uint8_t {
  beneath,
  on_top,  ///< before Linux 6.5: the old mount stays beneath the new one
};
/// What the kernel supports; EPERM: this process may not mount in its namespace.
Result<Stacking> mount_stacking();

/// Replaces what is mounted on `mount_point` by `tree`, or mounts over it (Stacking).
Result<void> exchange_mount(int tree, const std::string& mount_point);

/// st_dev of the mount that `file` is on; 0: unknown. Sends the file system no request.
dev_t mount_device(int file);

}  // namespace heddle
