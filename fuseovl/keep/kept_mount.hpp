// SPDX-License-Identifier: MIT
#pragma once

#include <string>

#include "base/fd.hpp"

namespace heddle {

enum class KeepKind : std::uint8_t {
  privately,   ///< in a mount namespace of the daemon's own; users get copies of the mount (root)
  fusermount,  ///< in the namespace as it is, by fusermount3 (anybody)
};

/// A mount that its daemon keeps for others, and takes away when they have gone.
class KeptMount {
 public:
  /// Mounts at `mount_point`. KeepKind::privately moves this process into a namespace of its own:
  /// call it before any thread starts.
  static Result<KeptMount> make(KeepKind kind, const std::string& mount_point);
  KeptMount(KeptMount&&) = default;
  KeptMount& operator=(KeptMount&&) = delete;

  /// The device to serve; once.
  Fd take_device() { return std::move(device_); }
  KeepKind kind() const { return kind_; }
  const std::string& mount_point() const { return mount_point_; }

  /// A detached copy of the mount, for another mount namespace; the file system lives as long as
  /// the last of them. No descriptor with KeepKind::fusermount: the mount is visible to all.
  Result<Fd> copy() const;
  /// Takes the daemon's own mount away; the file system ends with its last user.
  /// KeepKind::fusermount: fails while processes use it, and with ETIMEDOUT when fusermount3 has
  /// not ended for some seconds; to be tried again.
  Result<void> release() const;

 private:
  KeptMount(KeepKind kind, std::string mount_point, Fd device)
      : kind_(kind), mount_point_(std::move(mount_point)), device_(std::move(device)) {}
  KeepKind kind_;
  std::string mount_point_;
  Fd device_;
};

}  // namespace heddle
