// SPDX-License-Identifier: MIT
#pragma once

#include <string>
#include <vector>

#include "resolver/map/map_content.hpp"

namespace heddle {

/// A library that probably opens plugins which it finds by its own place (dladdr): where it is
/// served from a view, it looks there.
struct PluginSuspect {
  std::string library;
  std::string folder;   ///< that holds them
  bool beside = false;  ///< the library's own folder, so that --plugins cannot bring them
};

/// The suspects among what `program` loads: they import dladdr and dlopen, and libraries that the
/// view has not lie beside them or in a folder there. In the system's library folders, which hold
/// everything, only such a folder counts as a suspect holds the name of in a relative path. Lists
/// folders and reads libraries: for after the run.
std::vector<PluginSuspect> find_plugin_suspects(const MapContent& content,
                                                const MapProgram& program);

}  // namespace heddle
