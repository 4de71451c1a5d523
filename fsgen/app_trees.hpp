// SPDX-License-Identifier: MIT
#pragma once

// Directory trees of the map, over their own paths in APP's mount namespace.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/result.hpp"
#include "fsgen/gen_options.hpp"
#include "resolver/map/map_content.hpp"
#include "resolver/map/tree_index.hpp"
#include "resolver/tree/python_trees.hpp"

namespace heddle {

/// What may become trees of a run.
struct TreeCandidates {
  std::vector<FoundTree> found;    ///< that options.command imports from if it is Python
  std::vector<std::string> named;  ///< --tree
  std::vector<std::string> never;  ///< directories in use: they and what holds them are no trees
  std::vector<std::string> notes;

  /// Equal for runs whose trees are equal as long as no file changes; empty: none can be.
  std::string identity() const;
  /// Those of `found` that may be trees in this run: a change in one may make it a tree.
  std::vector<std::string> possible() const;
};
/// All paths are canonical if they exist. None where there can be no trees.
TreeCandidates find_tree_candidates(const GenOptions& options);

/// The trees of one run.
struct AppTrees {
  std::vector<MapTree> trees;
  std::vector<std::string> notes;  ///< why others were left out
};

/// Those of the candidates that are named or on slow file systems. `earlier`, if not null, are an
/// earlier run's, of which only what has changed is read again. A failure leaves all trees out,
/// with a note; that of a --tree is also a warning.
AppTrees read_app_trees(const GenOptions& options, const TreeCandidates& candidates,
                        const std::vector<MapTree>* earlier);

/// Whether the kernel knows the names of `trees`, as after a run just before on a file system whose
/// names it keeps for some time: a look at one then is no request, and the trees save nothing.
/// Looks at 16 directories.
bool names_are_known(const std::vector<MapTree>& trees);

/// A map's trees (MapReader::trees()), whose files need not be on this node.
using ShippedTrees = std::vector<std::pair<std::string_view, TreeIndex>>;

/// The executable file that `path` leads to where `trees` are in their places, through their links
/// and out of them; absolute. nullopt: none.
std::optional<std::string> executable_in(const ShippedTrees& trees, const std::string& path);

/// The path that execvp(3) would execute for `name` where the trees of `map` are in their places,
/// if that is not what it finds here, `found`. nullopt: it is.
std::optional<std::string> find_in_trees(const std::string& map, const std::string& name,
                                         const Result<std::string>& found);

/// Where a tree goes.
struct TreePlace {
  std::string path;
  std::vector<std::string> holes;  ///< relative to it: the originals show through
  std::uint64_t entries = 0;
};
std::vector<TreePlace> places_of(const std::vector<MapTree>& trees);

/// In APP's process, in a mount namespace of its own where the map is mounted at `mount_point`:
/// binds each tree over its own path, and the originals of its holes over theirs. Working
/// directories stay what they are. Cause::tree: some tree cannot be put in its place.
Result<void> cover_with_trees(const std::string& mount_point, const std::vector<TreePlace>& trees);

}  // namespace heddle
