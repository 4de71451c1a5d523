// SPDX-License-Identifier: MIT
#pragma once

#include <optional>
#include <string>
#include <vector>

namespace heddle {

/// A folder that a library opens files of at run time: no DT_NEEDED tells of it.
struct PluginFolder {
  std::string path;       ///< on the host
  std::string view_name;  ///< where it stands in a view: "ucx", "share/openmpi"
  std::string wanted_by;  ///< path of the library
  /// True: the library looks beside itself (dladdr), so a view serves it; false: at `path`, a
  /// string built into it, unless the environment says otherwise.
  bool beside = false;
  std::vector<std::string> environment;  ///< variables that name the folder, if any
  /// Strings of the library's own that it may have the folder by: as they are, or with more behind
  /// a slash.
  std::vector<std::string> built_in;
  /// The folder's place in a view for a library in which such a string is changed, where
  /// `view_name` is too long for that; empty: the view's root, which gets `only` then.
  std::optional<std::string> short_name;
  /// Parameters or texts, no plugins: the image's own, if it has some, are for its own libraries.
  bool is_data = false;
  std::string only;                  ///< prefix of the names that count
  std::vector<std::string> plugins;  ///< its ELF files' names, sorted; the rest is data
};

/// The folders that the library `path` (symlink-free) with `soname` looks into and that are there.
std::vector<PluginFolder> plugin_folders_of(const std::string& path, const std::string& soname);

}  // namespace heddle
