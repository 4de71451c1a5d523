// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/result.hpp"
#include "resolver/map/map_content.hpp"

namespace heddle {

/// Number of a file in the mount. It is a function of the map, and of what the mount showed before
/// when its map was exchanged, so that another process can take over the same session. 0 means
/// none.
using InodeNumber = std::uint64_t;

enum class NodeKind : std::uint8_t { directory, object, stats, index, map, generated };

/// One name of a directory; valid as long as its Tree.
struct TreeEntry {
  std::string_view name;
  InodeNumber ino = 0;
};

/// What a tree takes over from the one that the mount showed before it. The kernel knows files by
/// their numbers: a number stays with what is the same, and is never given to anything else.
struct TreeNumbers {
  static constexpr InodeNumber kFirst = 4;
  InodeNumber next = kFirst;                             ///< not used yet, nor any above it
  std::vector<InodeNumber> objects;                      ///< by ObjectId, 0 or missing: a new one
  std::unordered_map<std::string, InodeNumber> folders;  ///< by path from the root, `/` at its end
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

  /// Fails (EINVAL) on a name that no directory can hold: empty, `.`, `..`, longer than 255 bytes,
  /// two files of one name, a file where another name needs a folder, or `.heddle` at the root.
  static Result<Tree> build(const MapContent& content, const TreeNumbers& numbers = {});

  /// nullopt: there is no such inode.
  std::optional<NodeKind> kind(InodeNumber ino) const;
  /// Only for an inode of kind object.
  ObjectId object(InodeNumber ino) const { return find(ino)->index; }
  /// Index into MapContent::generated, for an inode of that kind.
  std::size_t generated(InodeNumber ino) const { return find(ino)->index; }
  InodeNumber inode(ObjectId object) const { return objects_[object].ino; }
  InodeNumber index() const { return first_; }
  InodeNumber map() const { return first_ + 1; }
  InodeNumber generated_inode(std::size_t i) const { return first_ + 2 + i; }
  /// 0: `directory` has no such name, or is no directory.
  InodeNumber lookup(InodeNumber directory, std::string_view name) const;
  /// Sorted by name, without `.` and `..`; empty for anything but a directory.
  std::span<const TreeEntry> entries(InodeNumber directory) const;
  /// The directory that holds `directory`; the root is its own.
  InodeNumber parent(InodeNumber directory) const;
  /// Names of a file; for a directory 2 and its sub-directories, as ext4 counts.
  std::uint32_t link_count(InodeNumber ino) const;

  std::size_t directory_count() const { return directories_.size(); }
  std::size_t object_count() const { return objects_.size(); }
  std::size_t generated_count() const { return generated_count_; }
  std::vector<InodeNumber> directories() const;

  /// For the tree that follows, but for its objects, which only their files tell apart.
  TreeNumbers numbers() const;

 private:
  friend class TreeBuilder;
  friend class TreeParcel;
  struct Directory {
    std::string path;  ///< from the root, `/` at its end; the root's is empty
    InodeNumber ino = 0;
    InodeNumber parent = kRoot;
    std::vector<TreeEntry> entries;
    std::uint32_t links = 2;
  };
  struct Object {
    InodeNumber ino = 0;
    std::uint32_t links = 0;
  };
  struct Node {
    InodeNumber ino = 0;
    NodeKind kind{};
    std::uint32_t index = 0;  ///< of its kind
  };
  const Node* find(InodeNumber ino) const;
  const Directory* directory(InodeNumber ino) const;
  void make_nodes();

  std::vector<Directory> directories_;  ///< in order of their paths
  std::vector<Object> objects_;         ///< by ObjectId
  std::size_t generated_count_ = 0;
  InodeNumber first_ =
      TreeNumbers::kFirst;  ///< index, map and generated files have theirs from here
  InodeNumber next_ = TreeNumbers::kFirst;
  std::vector<std::string> names_;  ///< owns what the entries show
  std::vector<Node> nodes_;         ///< in order of their numbers
};

}  // namespace heddle
