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
  /// Where programs see the map's names: below the mount, or the mount itself; no trailing slash.
  std::string mount_point;
  /// This node's stamp of each program's file, by position in content.programs; nullopt: the file
  /// is not here or not the mapped one, the program is left out and runs unguided.
  std::vector<std::optional<FileStamp>> programs;
  /// By object: true sends its names to the origin path instead of the view.
  std::vector<bool> direct;
  /// This node's stamp of each object's file; nullopt: unknown. Empty: of none. They let the audit
  /// library recognise a served file by any path.
  std::vector<std::optional<FileStamp>> objects = {};
};

/// Whether `name` (not empty) is asked for by its exact bytes, whoever asks: relative paths and
/// $ORIGIN and its kin (dl-load.c expands them in names and in what we answer) mean something else
/// for each caller.
inline bool is_plain_name(std::string_view name) {
  return name.find('$') == name.npos && (name.front() == '/' || name.find('/') == name.npos);
}

/// The index's bytes for one mount. The names of a program lead to the shortest path of their
/// object in its view ("<mount>/<name>" when there is one view, else "<mount>/<view>/<name>"), or
/// to the origin path of an object that is direct or has no name in the view. Left to ld.so are
/// - its own soname and paths: guiding them kills dlmopen (measured; also its soname to its own
///   path: dl-load.c then forgets the soname, and _dl_check_map_versions dies of that);
/// - names that mean something else for each caller: relative paths, dynamic string tokens;
/// - names that several programs of one file (hard links) would send to different targets.
/// An object also is direct when moving it would change where ld.so searches: one whose RUNPATH or
/// RPATH begins at $ORIGIN and that calls dlopen, or is in the RPATH chain of one that does.
/// Fails with EFBIG when it would outgrow the format's 4 GiB, EINVAL when the vectors' sizes are
/// not those of `content`.
Result<std::string> make_index(const IndexInput& input);

}  // namespace heddle
