// SPDX-License-Identifier: MIT
#include "resolver/policy/tagged_folders.hpp"

#include <dirent.h>
#include <fcntl.h>

#include <algorithm>
#include <cerrno>
#include <memory>

#include "resolver/search/search_path.hpp"

namespace heddle {
namespace {

/// The kernel's word of a program (/proc/self/exe) is free of links, ld.so's of a library is as it
/// was found (elf/dl-object.c; of what it was itself asked to load: until 2.42).
std::string origin_of(const LoadedObject& object, OsWorld& world, const LoaderProfile& loader) {
  const bool resolved = object.found_by == FoundBy::program &&
                        (object.file.elf.interp.has_value() || loader.glibc_minor >= 42);
  auto path = resolved ? world.real_path(object.path) : object.path;
  path.resize(std::max<std::size_t>(path.rfind('/'), 1));
  return path;
}

}  // namespace

TaggedFolders tagged_folders(const LoadedObject& object, OsWorld& world,
                             const LoaderProfile& loader) {
  const auto& elf = object.file.elf;
  const auto text = elf.runpath ? *elf.runpath : elf.rpath.value_or("");
  TaggedFolders out;
  if (text.empty()) return out;
  const auto origin = origin_of(object, world, loader);
  SearchDirs dirs(world, loader);
  SearchList list;
  dirs.fill(list, text, ":", {origin, loader.platform, loader.lib});
  for (auto* dir : list.dirs) {
    if (!dir->name.starts_with('/')) {
      out.complete = false;
      continue;
    }
    out.folders.push_back(dir->name);
    for (const auto i : dirs.present(*dir))
      if (const auto& level = dirs.capability(i); !level.empty())
        out.for_cpus.push_back(dir->name + level);
  }
  return out;
}

Result<std::vector<FolderEntry>> list_folder(OsWorld& world, const std::string& path) {
  world.note_listing(path);
  std::vector<FolderEntry> out;
  const auto folder = world.open(path, O_RDONLY | O_DIRECTORY);
  if (!folder) {
    const int code = folder.error().code();
    if (code == ENOENT || code == ENOTDIR) return out;
    return fail(folder.error());
  }
  const std::unique_ptr<DIR, int (*)(DIR*)> list(
      ::opendir(("/proc/self/fd/" + std::to_string(folder->get())).c_str()), &::closedir);
  if (!list) return fail_errno(path, "cannot list");
  for (;;) {
    errno = 0;
    const dirent* entry = ::readdir(list.get());
    if (entry == nullptr) break;
    out.push_back({entry->d_name, entry->d_type == DT_DIR});
  }
  if (errno != 0) return fail_errno(path, "cannot list");
  return out;
}

}  // namespace heddle
