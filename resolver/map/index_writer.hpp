// SPDX-License-Identifier: MIT
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/file_stamp.hpp"
#include "base/result.hpp"
#include "resolver/map/map_content.hpp"

namespace heddle {

enum class ServePolicy : std::uint8_t {
  all,     ///< every guided name leads into the view
  remote,  ///< names whose origin lies on a node-local file system lead to the origin itself
};

struct IndexInput {
  const MapContent& content;
  /// The directory that shows the map's names: the mount, or one below it; no trailing slash.
  std::string mount_point;
  /// This node's stamp of each program's file, by position in content.programs; nullopt: the file
  /// is missing or has changed, and the program runs unguided.
  std::vector<std::optional<FileStamp>> programs;
  /// By object: true guides its names to the origin path instead of the view.
  std::vector<bool> direct;
  /// This node's stamp of each object's file; nullopt: unknown. Empty: all unknown. The auditor
  /// recognises a served file by them under any path.
  std::vector<std::optional<FileStamp>> objects = {};
  /// By object: its stamp where the mount serves it in a tree, with index_format::kThisMount as its
  /// dev; nullopt: it is in none. Empty: the map has no trees.
  std::vector<std::optional<FileStamp>> in_trees = {};
};

/// Whether `name` (not empty) means the same file for each caller: not so relative paths and
/// dynamic string tokens (dl-load.c expands them in names and in an auditor's answer).
inline bool is_plain_name(std::string_view name) {
  return name.find('$') == name.npos && (name.front() == '/' || name.find('/') == name.npos);
}

/// The index's bytes for one mount. The names of a program lead to the shortest path of their
/// object in its view ("<mount>/<name>" when there is one view, else "<mount>/<view>/<name>"), or
/// to the origin path of an object that is direct or has no name in the view. Left to ld.so are
/// - its own soname and paths: guiding them breaks dlmopen (measured; even the soname to its own
///   path: dl-load.c then loses the soname, which _dl_check_map_versions asserts);
/// - names that are not is_plain_name();
/// - names that lead to different targets for several programs of one file (hard links).
/// An object is also direct when serving it elsewhere would change where ld.so searches: its
/// RUNPATH or RPATH contains $ORIGIN and it calls dlopen, or is in the RPATH chain of one that
/// does. Fails with EFBIG above the format's 4 GiB, EINVAL when the vectors' sizes do not match
/// `content`.
Result<std::string> make_index(const IndexInput& input);

}  // namespace heddle
