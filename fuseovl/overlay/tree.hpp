// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.hpp"
#include "resolver/map/map_content.hpp"
#include "resolver/map/served_names.hpp"
#include "resolver/map/tree_index.hpp"

namespace heddle {

/// Number of a file in the mount, a function of the map; 0: none.
using InodeNumber = std::uint64_t;

enum class NodeKind : std::uint8_t {
  directory,
  object,
  link,
  own,
  tree_file,  ///< a regular file of one of the map's trees
};

/// One name of a directory; lives as long as its Tree.
struct TreeEntry {
  std::string_view name;
  InodeNumber ino = 0;
};

/// An earlier map of the mount point.
struct PreviousMap {
  std::string id;  ///< map_directory() of its id
  /// Name below that map's directory, and the original file's path.
  std::vector<std::pair<std::string, std::string>> names;
};

/// The maps in a mount's `.m`.
struct MapDirectories {
  std::string id;  ///< map_directory() of the mounted map; empty: there is no `.m`
  std::vector<PreviousMap> previous = {};
};

/// The immutable directory tree of one map: a directory for each view and plugin directory, the
/// names of an only view at the root too, `.heddle` with index, map and generated files, and `.m`
/// (served_names.hpp), which has the views' names once more, for guided programs, and the names of
/// earlier maps as links to the original files; and `.t` with the map's trees, whose names and
/// attributes stay where they are, in the map's bytes. All aliases of an object are one inode, and
/// so are all hard links of a tree's file. Touches no file.
class Tree {
 public:
  static constexpr InodeNumber kRoot = 1;
  static constexpr InodeNumber kOwnDirectory = 2;  ///< `.heddle`
  static constexpr InodeNumber kMapNames = kMapInode;
  static constexpr InodeNumber kIndex = 4;
  static constexpr InodeNumber kMap = 5;
  static constexpr InodeNumber kFirstGenerated = 6;
  static constexpr InodeNumber kTrees = UINT32_MAX;  ///< `.t`

  /// A node of one of the map's trees.
  struct TreePlace {
    std::size_t tree = 0;
    TreeNodeId node = kTreeRoot;
  };
  /// Upper half: the tree's number and 1; lower half: the node's and 1.
  static constexpr InodeNumber inode(TreePlace place) {
    return (InodeNumber{place.tree} + 1) << 32 | (InodeNumber{place.node} + 1);
  }

  /// Fails on an invalid name: empty, `.`, `..`, longer than 255 bytes, twice in one directory, or
  /// one of heddle's own at the root.
  /// `trees` are in the order of MapContent::trees; an empty one is left out. Their bytes must
  /// outlive the result.
  static Result<Tree> build(const MapContent& content, const MapDirectories& maps = {},
                            std::vector<TreeIndex> trees = {});

  /// nullopt: there is no such inode.
  std::optional<NodeKind> kind(InodeNumber ino) const;
  /// Only for an inode of kind object.
  ObjectId object(InodeNumber ino) const { return find(ino)->index; }
  /// Of an inode of kind own: 0 the index, 1 the map, then MapContent::generated in its order.
  std::size_t own(InodeNumber ino) const { return find(ino)->index; }
  InodeNumber inode(ObjectId object) const { return objects_[object].ino; }
  /// Of an inode in a tree.
  std::optional<TreePlace> tree_place(InodeNumber ino) const;
  TreeNode tree_node(TreePlace place) const { return trees_[place.tree].node(place.node); }
  /// Only for an inode of kind link.
  std::string_view target(InodeNumber ino) const;
  /// 0: no such name, or `directory` is no directory.
  InodeNumber lookup(InodeNumber directory, std::string_view name) const;
  /// The i-th entry, sorted by name, without `.` and `..`; nullopt: there is none. The name of an
  /// entry in a tree does not end in NUL.
  std::optional<TreeEntry> entry(InodeNumber directory, std::size_t i) const;
  /// The directory that holds `directory`; the root is its own.
  InodeNumber parent(InodeNumber directory) const;
  /// Names of a file; for a directory 2 and its sub-directories, as ext4 counts.
  std::uint32_t link_count(InodeNumber ino) const;

  std::size_t directory_count() const { return directories_.size(); }
  std::size_t tree_node_count() const;
  std::size_t object_count() const { return objects_.size(); }

 private:
  friend class TreeBuilder;
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
  struct Link {
    InodeNumber ino = 0;
    std::string target;
  };
  struct Node {
    InodeNumber ino = 0;
    NodeKind kind{};
    std::uint32_t index = 0;  ///< of its kind
  };
  const Node* find(InodeNumber ino) const;
  const Directory* directory(InodeNumber ino) const;
  InodeNumber child(TreePlace place) const;
  void make_nodes();

  std::vector<Directory> directories_;  ///< in order of their paths
  std::vector<Object> objects_;         ///< by ObjectId
  std::vector<Link> links_;
  std::size_t generated_count_ = 0;
  std::vector<TreeIndex> trees_;
  std::deque<std::string> names_;  ///< the strings of TreeEntry::name
  std::vector<Node> nodes_;        ///< in order of their numbers
};

}  // namespace heddle
