// SPDX-License-Identifier: MIT
#pragma once

#include <string>
#include <vector>

#include "resolver/search/closure.hpp"
#include "resolver/search/os_world.hpp"

namespace heddle {

/// Folders that an object's RPATH or RUNPATH names.
struct TaggedFolders {
  std::vector<std::string> folders;  ///< absolute
  bool complete = true;  ///< false: there are others, relative or with tokens besides $ORIGIN
};
TaggedFolders tagged_folders(const LoadedObject& object, OsWorld& world);

/// A name in a folder.
struct FolderEntry {
  std::string name;
  bool is_folder = false;  ///< links to folders are none
};
/// Empty: there is none, or it cannot be read.
std::vector<FolderEntry> list_folder(OsWorld& world, const std::string& path);

}  // namespace heddle
