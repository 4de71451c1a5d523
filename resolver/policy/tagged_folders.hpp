// SPDX-License-Identifier: MIT
#pragma once

#include <string>
#include <vector>

#include "resolver/search/closure.hpp"
#include "resolver/search/os_world.hpp"
#include "resolver/search/search.hpp"

namespace heddle {

/// Folders that an object's RPATH or RUNPATH names, as ld.so takes them.
struct TaggedFolders {
  std::vector<std::string> folders;   ///< absolute, a slash at the end
  std::vector<std::string> for_cpus;  ///< of their sub-folders for CPU levels those that are there
  bool complete = true;               ///< false: there are relative ones, or the current folder
};
TaggedFolders tagged_folders(const LoadedObject& object, OsWorld& world,
                             const LoaderProfile& loader);

/// A name in a folder.
struct FolderEntry {
  std::string name;
  bool is_folder = false;  ///< links to folders are none
};
/// Empty where there is no folder. Fails when it cannot be read to its end. The world's asked() has
/// it, with all names.
Result<std::vector<FolderEntry>> list_folder(OsWorld& world, const std::string& path);

}  // namespace heddle
