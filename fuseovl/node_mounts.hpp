// SPDX-License-Identifier: MIT
#pragma once

#include <list>
#include <string>

#include "base/fd.hpp"
#include "fuseovl/mount_program.hpp"

namespace heddle {

/// The mounts `FOLDER/ID` of a node's service, ID being the hash of the map's bytes. Each is served
/// by a daemon of its own, and leaves the tree when it is dropped: who has a copy keeps it.
class NodeMounts {
 public:
  /// Goes on with the mounts that an earlier service has left in `folder`.
  explicit NodeMounts(std::string folder);

  static bool is_id(const std::string& text);
  std::string place(const std::string& id) const { return folder_ + "/" + id; }
  /// Whether it stands and is served; it then counts as used now. One that is dead is dropped.
  bool has(const std::string& id);
  /// Makes the mount of the map open at `map`; for a process of its own (base/child.hpp),
  /// which it turns into fs-mount.
  Result<void> make(MountSettings settings, const std::string& id, int map) const;
  /// It has been made. The one that was not asked for for longest goes when there are too many.
  void add(const std::string& id);
  /// `id` may be none of them, or half made.
  void drop(const std::string& id);
  void drop_all();

 private:
  std::string folder_;
  std::list<std::string> ids_;  ///< the one asked for last is the first
};

}  // namespace heddle
