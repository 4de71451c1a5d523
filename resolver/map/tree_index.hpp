// SPDX-License-Identifier: MIT
#pragma once

// One directory tree of a map: every name with its attributes, so that each negative answer is
// final. The bytes are used as they are, by the daemon too: 64 bytes and the name for each entry.
// docs/formats/map.md has their layout.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.hpp"

namespace heddle {

using TreeNodeId = std::uint32_t;
inline constexpr TreeNodeId kTreeRoot = 0;
inline constexpr TreeNodeId kMostTreeNodes = 16U << 20;  ///< of one tree

/// One name of a tree. Attributes are those of lstat(2).
struct TreeNode {
  std::string_view name;  ///< the root's is empty
  TreeNodeId parent = 0;  ///< the root's is itself
  /// Type and permissions: a directory, regular file or symbolic link. Files have no set-ID bits.
  std::uint16_t mode = 0;
  std::uint32_t uid = 0;
  std::uint32_t gid = 0;
  std::uint32_t links = 1;
  std::uint64_t size = 0;
  std::int64_t mtime_ns = 0;
  std::int64_t ctime_ns = 0;  ///< of the building node; tells whether the tree is to be read again
  /// The first node of the same file (hard links within the tree); else the node itself.
  TreeNodeId same_as = 0;
  /// Not in the tree: the original is mounted here (--tree-exclude, a directory that cannot be
  /// read, a socket, FIFO or device). An excluded directory has no children, all else is a file.
  bool hole = false;
  std::string_view target;  ///< of a symbolic link
  TreeNodeId first_child = 0;
  std::uint32_t child_count = 0;
};

/// The tree that some bytes are; copies share the bytes.
class TreeIndex {
 public:
  /// `bytes` must outlive all copies, and are untrusted. Checks all of them: names (no `/`, NUL,
  /// `.`, `..`, at most 255 bytes), sorted and unique within a directory, ranges that cover each
  /// node but the root once, parents before children, types and modes. EBADMSG: one does not hold.
  static Result<TreeIndex> of(std::string_view bytes);

  std::uint32_t size() const { return count_; }
  /// `id` < size().
  TreeNode node(TreeNodeId id) const;
  /// By binary search; nullopt: no such name, or `directory` is none.
  std::optional<TreeNodeId> find(TreeNodeId directory, std::string_view name) const;
  /// Of a relative path, names separated by one `/`; the empty path is the root. Follows no link.
  std::optional<TreeNodeId> find_path(std::string_view path) const;
  /// Relative to the root, which has the empty path.
  std::string path(TreeNodeId id) const;
  std::string_view bytes() const { return bytes_; }

 private:
  std::string_view bytes_;
  std::uint32_t count_ = 0;
};

/// Makes the bytes of a tree.
class TreeIndexWriter {
 public:
  /// A node of the tree to be. Of TreeNode's fields name, mode, uid, gid, links, size, mtime_ns,
  /// ctime_ns, hole and target count, with owned strings, and what tells hard links apart.
  struct Entry {
    std::string name;
    std::uint16_t mode = 0;
    std::uint32_t uid = 0;
    std::uint32_t gid = 0;
    std::uint32_t links = 1;
    std::uint64_t size = 0;
    std::int64_t mtime_ns = 0;
    std::int64_t ctime_ns = 0;
    bool hole = false;
    std::string target;
    std::uint64_t dev = 0;  ///< with links > 1, files of equal dev and ino are one
    std::uint64_t ino = 0;
    std::vector<Entry> children;  ///< of a directory, in any order
  };
  /// Equal trees give equal bytes. EINVAL: a name or mode that TreeIndex::of() refuses; EFBIG: more
  /// than 16 million nodes or 1 GiB of text.
  static Result<std::string> encode(Entry root);
};

}  // namespace heddle
