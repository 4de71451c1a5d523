// SPDX-License-Identifier: MIT
#pragma once

#include <map>
#include <string>
#include <vector>

#include "resolver/policy/decision.hpp"
#include "resolver/policy/served_names.hpp"
#include "resolver/policy/swapped_world.hpp"

namespace heddle {

/// Where in the container the plugin folders of the host's libraries have to stand.
struct PluginPlaces {
  std::vector<FolderBind> folders;
  std::map<std::string, std::string> environment;  ///< that names them, where nothing can be bound
  std::vector<ChangedPath> changed;         ///< in libraries that look into the mount by themselves
  std::map<std::string, std::string> made;  ///< copies of these, by their names in the mount
  /// What the mount has of the host, with the short names of folders that they look for.
  std::map<std::string, std::string> names;
};
/// `binds`: by target, what of the mount goes over files of the container.
PluginPlaces find_plugin_places(const std::vector<PluginFolder>& folders,
                                const std::map<std::string, FileBind>& binds,
                                const ServedNames& names, OsWorld& inside, OsWorld& host,
                                const std::string& mount_point);

/// A line for each plugin that will not load from the mount, and why.
std::vector<std::string> plugins_that_fail(const ServedNames& names, SwappedWorld& world,
                                           const LoaderProfile& loader, const SearchOptions& search,
                                           const std::string& mount_point);

}  // namespace heddle
