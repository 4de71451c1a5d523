// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.hpp"
#include "resolver/map/map_content.hpp"

namespace heddle {

/// Number of a file in the mount. It is a function of the map alone, so that another daemon can
/// take over the same session. 0 means none.
using InodeNumber = std::uint64_t;

enum class NodeKind : std::uint8_t { directory, object, stats, index, map, generated };

/// One name of a directory; valid as long as its Tree.
struct TreeEntry {
  std::string_view name;
  InodeNumber ino = 0;
};

/// The immutable directory tree of one map: a directory for each view and plugin folder, the names
/// of the only view at the root as well, and `.heddle/{index,map,stats}` with
/// the map's generated files. Every alias of an object
/// is the same inode. Pure: it touches no file. Safe for concurrent readers.
class Tree {
 public:
  static constexpr InodeNumber kRoot = 1;
  static constexpr InodeNumber kOwnDirectory = 2;  ///< `.heddle`
  static constexpr InodeNumber kStats = 3;
  static constexpr InodeNumber kIndex = 4;
  static constexpr InodeNumber kMap = 5;
  static constexpr InodeNumber kFirstGenerated = 6;
  static constexpr InodeNumber kFirstObject = 16;
  static_assert(kFirstGenerated + kMaxGenerated <= kFirstObject);

  /// Fails (EINVAL) on a name that no directory can hold: empty, `.`, `..`, longer than 255 bytes,
  /// two files of one name, a file where another name needs a folder, or `.heddle` at the root.
  static Result<Tree> build(const MapContent& content);

  /// nullopt: there is no such inode.
  std::optional<NodeKind> kind(InodeNumber ino) const;
  /// Only for an inode of kind object.
  ObjectId object(InodeNumber ino) const { return static_cast<ObjectId>(ino - kFirstObject); }
  /// Index into MapContent::generated, for an inode of that kind.
  std::size_t generated(InodeNumber ino) const { return ino - kFirstGenerated; }
  InodeNumber inode(ObjectId object) const { return kFirstObject + object; }
  /// 0: `directory` has no such name, or is no directory.
  InodeNumber lookup(InodeNumber directory, std::string_view name) const;
  /// Sorted by name, without `.` and `..`; empty for anything but a directory.
  std::span<const TreeEntry> entries(InodeNumber directory) const;
  /// The directory that holds `directory`; the root is its own.
  InodeNumber parent(InodeNumber directory) const;
  /// Names of a file; for a directory 2 and its sub-directories, as ext4 counts.
  std::uint32_t link_count(InodeNumber ino) const;

  std::size_t directory_count() const { return directories_.size(); }
  std::size_t object_count() const { return object_links_.size(); }

 private:
  friend class TreeBuilder;
  struct Directory {
    InodeNumber parent = kRoot;
    std::vector<TreeEntry> entries;
    std::uint32_t links = 2;
  };
  const Directory* directory(InodeNumber ino) const;

  std::vector<Directory> directories_;  ///< the root, `.heddle`, then in order of their paths
  std::vector<std::uint32_t> object_links_;
  std::size_t generated_count_ = 0;
  std::vector<std::string> names_;  ///< owns what the entries show
};

}  // namespace heddle
