// SPDX-License-Identifier: MIT
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "resolver/search/os_world.hpp"

namespace heddle {

/// Where in an image files of some names are.
struct FoundCopies {
  std::vector<std::string> paths;  ///< sorted; files and links to them
  bool complete = true;            ///< false: it has more than is looked at, or can be
  /// Folders in which one that is added later most likely shows: those next to the root, where a
  /// prefix of its own begins, and those with libraries. Each ends in a slash.
  std::vector<std::string> watched;
};

/// Walks the image's own file system: no volume, nothing below /proc, /sys and /dev, no link to a
/// folder. Bounded, since a container waits for it.
FoundCopies find_copies(OsWorld& world, const std::function<bool(const std::string&)>& is_wanted);

}  // namespace heddle
