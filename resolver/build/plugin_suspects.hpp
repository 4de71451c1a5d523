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
  std::string directory;  ///< that holds them
  bool beside = false;    ///< the library's own directory, so that --plugins cannot bring them
};

/// The suspects among what `program` loads: they import dladdr and dlopen, and libraries that the
/// view has not lie beside them or in a directory there. In the system's library directories, which
/// hold everything, only such a directory counts as a suspect holds the name of in a relative path.
/// Lists directories and reads libraries: for after the run.
std::vector<PluginSuspect> find_plugin_suspects(const MapContent& content,
                                                const MapProgram& program);

}  // namespace heddle
