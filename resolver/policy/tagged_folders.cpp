// SPDX-License-Identifier: MIT
#include "resolver/policy/tagged_folders.hpp"

#include <dirent.h>
#include <fcntl.h>

#include <memory>

namespace heddle {

TaggedFolders tagged_folders(const LoadedObject& object, OsWorld& world) {
  const auto& elf = object.file.elf;
  const auto text = elf.runpath ? *elf.runpath : elf.rpath.value_or("");
  TaggedFolders out;
  for (std::size_t at = 0; at < text.size();) {
    const auto end = std::min(text.find(':', at), text.size());
    auto folder = text.substr(at, end - at);
    at = end + 1;
    for (const std::string token : {"$ORIGIN", "${ORIGIN}"})
      if (folder.starts_with(token)) {
        const auto real = world.real_path(object.path);
        folder.replace(0, token.size(), real.substr(0, real.rfind('/')));
      }
    if (folder.starts_with('/') && folder.find('$') == folder.npos)
      out.folders.push_back(folder);
    else
      out.complete = false;
  }
  return out;
}

std::vector<FolderEntry> list_folder(OsWorld& world, const std::string& path) {
  std::vector<FolderEntry> out;
  const auto folder = world.open(path, O_RDONLY | O_DIRECTORY);
  if (!folder) return out;
  const std::unique_ptr<DIR, int (*)(DIR*)> list(
      ::opendir(("/proc/self/fd/" + std::to_string(folder->get())).c_str()), &::closedir);
  while (const dirent* entry = list ? ::readdir(list.get()) : nullptr)
    out.push_back({entry->d_name, entry->d_type == DT_DIR});
  return out;
}

}  // namespace heddle
