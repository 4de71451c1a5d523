// SPDX-License-Identifier: MIT
#pragma once

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
  /// How the library has the folder's name built in, as one string of its own; empty: not known.
  std::string built_in;
  std::vector<std::string> plugins;  ///< its ELF files' names, sorted; the rest is data
};

/// The folders that the library `path` (symlink-free) with `soname` looks into and that are there.
std::vector<PluginFolder> plugin_folders_of(const std::string& path, const std::string& soname);

}  // namespace heddle
