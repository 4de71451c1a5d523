// SPDX-License-Identifier: MIT
#pragma once

// Chooses directories that become trees of a map, and reads them.

#include <functional>
#include <string>
#include <vector>

#include "base/result.hpp"
#include "resolver/map/map_content.hpp"
#include "resolver/tree/python_trees.hpp"

namespace heddle {

struct TreeRequest {
  std::vector<std::string> named;    ///< --tree: each becomes a tree, or all fails
  std::vector<FoundTree> found;      ///< each becomes a tree, or a note says why not
  std::vector<std::string> exclude;  ///< --tree-exclude: the originals show through
  /// No tree is one of these or holds one: the working directory, the script's. /, /usr, /home and
  /// the user's home directory need not be named.
  std::vector<std::string> never;
  /// Whether a found tree's file system is slow; empty: all are.
  std::function<bool(const std::string& directory)> is_slow;
  /// The trees of an earlier map: a directory with unchanged times is not listed again.
  const std::vector<MapTree>* earlier = nullptr;
  /// Names of a found tree: a .pth file may lead to a project's millions of data files.
  std::uint64_t most = 500'000;
};

struct ReadTrees {
  std::vector<MapTree> trees;      ///< for MapContent::trees
  std::vector<std::string> notes;  ///< "DIR: no tree: has a mount point in it: DIR/x"
  std::uint64_t listed = 0;        ///< directories that were listed
};

/// Keeps many operations in flight. A directory within another is part of that one's tree, and the
/// longest common directory of several becomes a tree in their place if it has nothing else: names
/// above a tree cost the origin a look-up at every path walk. A directory with set-ID files, or
/// with mount points that are not excluded, is refused. Failure: of a named tree, or that a tree
/// changes all the time.
Result<ReadTrees> read_trees(const TreeRequest& request);

}  // namespace heddle
