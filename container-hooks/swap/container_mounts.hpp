// SPDX-License-Identifier: MIT
#pragma once

#include <map>
#include <set>
#include <string>
#include <vector>

#include "base/fd.hpp"
#include "base/file_stamp.hpp"
#include "base/file_systems.hpp"
#include "container-hooks/cache/decision.hpp"

namespace heddle::hook {

/// What is mounted into one container, from inside its mount namespace and before its root is
/// changed. Every path of the image is resolved with the container's root as root, and used by
/// descriptor: no symlink of an image leads out of it. The image's own files are never written to.
///
/// An image chooses by links what its targets are. So a target is refused where a mount on it would
/// be seen elsewhere (a volume that is shared with the host) or would stand in for a file by which
/// the runtime talks to the kernel (/proc/self/attr/exec, sysctls), and what is mounted over is the
/// file that was checked.
class ContainerMounts {
 public:
  /// `rootfs`: the container's root as this mount namespace has it.
  static Result<ContainerMounts> open(const std::string& rootfs);

  /// Whether each file and directory that is to be bound over is there, and may be.
  Result<void> check(const Decision& decision);
  /// Mounts the FUSE file system of `device` at `mount_point`. A missing directory is made only in
  /// a tmpfs of the container's own (its /dev): elsewhere it would stay in the image.
  Result<void> mount(int device, const std::string& mount_point);
  /// As mount(), of the detached mount `tree`.
  Result<void> attach(Fd tree, const std::string& mount_point);
  /// Once the daemon answers. Stops at the first failure.
  Result<void> bind(const Decision& decision);
  /// Takes away what was mounted and made, the last first.
  void undo();

 private:
  explicit ContainerMounts(Fd root) : root_(std::move(root)) {}
  enum class Kind : std::uint8_t { file, directory };
  struct Target {
    FileId id;
    int mount = -1;
  };
  Result<Target> vet(const Fd& target, const std::string& path, Kind kind);
  Result<bool> is_shared(int mount);
  Result<Fd> make_directory(const std::string& path);
  Result<void> place(const Bind& bind, Kind kind);
  void keep(Fd placed);

  Fd root_;
  FileSystems file_systems_;
  std::map<int, bool> shared_;             ///< by mount id, as the container was before us
  std::map<std::string, FileId> checked_;  ///< what stood at each target
  std::set<int> own_mounts_;               ///< ids of `placed_`
  Fd overlay_;                             ///< the FUSE mount's root
  std::vector<Fd> placed_;                 ///< roots of our mounts
  Fd made_in_;                             ///< the directory that holds the mount point we made
  std::string made_name_;
};

}  // namespace heddle::hook
