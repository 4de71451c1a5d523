// SPDX-License-Identifier: MIT
#pragma once

#include <map>
#include <string>
#include <vector>

#include "resolver/policy/host_side.hpp"
#include "resolver/policy/side_choice.hpp"

namespace heddle::policy {

/// What the mount has of the host: a flat directory of libraries, and their plugin directories
/// below it.
struct ServedNames {
  std::map<std::string, std::string> files;    ///< name below the mount -> host's file
  std::map<std::string, std::string> sonames;  ///< a name asked for -> name below the mount
};
ServedNames served_names(const SideChoice& sides, const GlibcChoice& glibc,
                         const GlibcFamily& family);

/// Whether a name below the mount is a plugin's.
bool is_plugin_name(const std::string& name);

/// Where in the container the plugin directories of the host's libraries have to stand.
struct PluginPlaces {
  std::vector<DirectoryBind> directories;
  std::map<std::string, std::string> environment;  ///< that names them, where nothing can be bound
  std::vector<ChangedPath> changed;         ///< in libraries that look into the mount by themselves
  std::map<std::string, std::string> made;  ///< copies of these, by their names in the mount
  /// What the mount has of the host, with the short names of directories that they look for.
  std::map<std::string, std::string> names;
};
/// `binds`: by target, what of the mount goes over files of the container.
PluginPlaces find_plugin_places(const std::vector<PluginDirectory>& directories,
                                const std::map<std::string, FileBind>& binds,
                                const ServedNames& names, OsWorld& inside, OsWorld& host,
                                const std::string& mount_point);

}  // namespace heddle::policy
