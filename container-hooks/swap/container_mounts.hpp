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

/// The mounts in one container, made in its mount namespace before its root is changed. Every path
/// of the image is resolved with the container's root as root and used by descriptor, so that no
/// symbolic link leads out of it. The image's files are never written to.
///
/// An image's links choose the targets of mounts. So a target is refused when the mount would
/// propagate (a volume shared with the host) or would cover a file by which the runtime talks to
/// the kernel (/proc/self/attr/exec, sysctls), and a mount goes only over the file that was
/// checked.
class ContainerMounts {
 public:
  /// `rootfs`: the container's root in this mount namespace.
  static Result<ContainerMounts> open(const std::string& rootfs);

  /// Fails unless every target of the decision exists and may be mounted over.
  Result<void> check(const Decision& decision);
  /// Mounts the detached FUSE mount `tree` at `mount_point`. A missing directory is made only in a
  /// tmpfs of the container (its /dev): elsewhere it would stay in the image.
  Result<void> attach(Fd tree, const std::string& mount_point);
  /// Makes the decision's bind mounts; the daemon must answer. Stops at the first failure.
  Result<void> bind(const Decision& decision);
  /// Undoes all mounts and the mount point, the last first.
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
  Result<void> place(const std::string& source, const std::string& path, Kind kind);
  void keep(Fd placed);

  Fd root_;
  FileSystems file_systems_;
  std::map<int, bool> shared_;             ///< by mount id, before the first mount of this class
  std::map<std::string, FileId> checked_;  ///< by target
  std::set<int> own_mounts_;               ///< ids of `placed_`
  Fd overlay_;                             ///< the FUSE mount's root
  std::vector<Fd> placed_;                 ///< roots of this class's mounts
  Fd made_in_;                             ///< the parent of a mount point that was made
  std::string made_name_;
};

}  // namespace heddle::hook
