// SPDX-License-Identifier: MIT
#pragma once

#include <string>
#include <vector>

#include "resolver/map/map_content.hpp"

namespace heddle {

/// One way in which this node differs from a map.
struct MapDrift {
  std::string path;  ///< of the file
  std::string what;  ///< missing, replaced, changed, unreadable; passed over, not found, added
  std::string detail;
};

/// The files of the map that are not what they were. Size and time first, content when they differ.
/// dev and ino say nothing: they differ on another node and after a reboot.
std::vector<MapDrift> file_drifts(const MapContent& content);

struct SearchDrifts {
  std::vector<MapDrift> drifts;
  /// Programs whose search could not be repeated, and why: "path: reason".
  std::vector<std::string> not_checked;
};

/// Where ld.so would now come to another file: a library that a folder earlier in a search path has
/// since (passed over: the map's), one that no search comes to any more (not found), one that is
/// loaded besides (added). Searches again for each program, with the LD_LIBRARY_PATH and the
/// preloads of the map; what `known` names is not told again.
SearchDrifts search_drifts(const MapContent& content, const std::vector<MapDrift>& known);

}  // namespace heddle
