// SPDX-License-Identifier: MIT
// Placement: folders of the image that the host's files must not simply go into: those of copies
// of MPI, whose users nobody named, and those without a place for plugins.
#include <elf.h>

#include <algorithm>
#include <cstring>

#include "resolver/policy/cache_place.hpp"
#include "resolver/policy/closure_checks.hpp"
#include "resolver/policy/placement.hpp"

namespace heddle {
namespace {

constexpr const char* kOtherClass = "other-class";

/// A file that ld.so passes over in its search: an ELF header of the class that it does not load.
std::string of_another_class(const LoaderProfile& loader) {
  Elf64_Ehdr header{};
  std::memcpy(header.e_ident, ELFMAG, SELFMAG);
  header.e_ident[EI_CLASS] = loader.elf_class == ELFCLASS64 ? ELFCLASS32 : ELFCLASS64;
  header.e_ident[EI_DATA] = ELFDATA2LSB;
  header.e_ident[EI_VERSION] = EV_CURRENT;
  header.e_type = ET_DYN;
  header.e_version = EV_CURRENT;
  return {reinterpret_cast<const char*>(&header), sizeof(header)};
}

}  // namespace

/// "X lacks Y of Z" for a file of a copy's folder that the host's would go over, whose users nobody
/// has asked about.
std::string Placement::misfit_of_copies(const Closure& closure) const {
  for (const auto& object : closure.objects) {
    if (object.found_by != FoundBy::ld_library_path ||
        object.path.starts_with(mount_point_ + "/") ||
        binds_.contains(inside_.world().real_path(object.path)))
      continue;
    const auto at = names_.sonames.find(object.file.elf.soname.value_or(""));
    const auto host =
        at == names_.sonames.end() ? names_.files.end() : names_.files.find(at->second);
    if (host == names_.files.end()) continue;
    const auto file = host_.facts(host->second);
    const auto& offered = file ? file->elf.version_definitions : std::vector<std::string>();
    for (const auto& version : object.file.elf.version_definitions)
      if (std::find(offered.begin(), offered.end(), version) == offered.end())
        return host->second + " lacks " + version + " of " + object.path;
  }
  return {};
}

/// A copy of MPI that only programs find that nobody named: most likely by RPATH, so the host's
/// library that stands there looks for its own in that folder first, as by LD_LIBRARY_PATH. What
/// it finds must be the host's too, or do for it; else nothing is bound in that folder.
bool Placement::bind_strays_of_copies(SwappedWorld& world, const LoaderProfile& loader) {
  bool more = false;
  for (const auto& part : stack_.copies) {
    const auto folder = folder_of(part.path);
    if (stack_.stays.contains(folder)) continue;
    auto options = search_;
    options.ld_library_path = folder;
    options.ld_library_path_set = true;
    std::string why;
    if (folder.find_first_of(":;$") != folder.npos) why = "its name is none for a search path";
    const auto closure = resolve(world, loader, part.path, options);
    if (why.empty()) why = closure ? misfit_of_copies(*closure) : closure.error().message();
    if (!why.empty()) {
      stack_.stays[folder] = why;
      return true;
    }
    for (const auto& object : closure->objects)
      if (object.found_by == FoundBy::ld_library_path)
        found_by_tag_.insert(inside_.world().real_path(object.path));
    const bool bound = bind_strays(*closure);
    more |= bound;
    if (bound) continue;
    if (const auto lines = unmet_needs(*closure); !lines.empty()) why = lines[0].line;
    if (!closure->missing.empty()) why = closure->missing[0].name + " would not be found";
    if (!why.empty()) {
      stack_.stays[folder] = why;
      return true;
    }
  }
  return more;
}

/// A library that looks for its plugins beside itself, found by a tag in a folder of the image that
/// has no place for them: it must come from the mount, where they stand. What is bound over the
/// image's file is then no library for ld.so, but of another ELF class, which it passes over
/// (elf/dl-load.c, open_verify: "not a fatal error"): the search goes on to the cache, whoever
/// searches, and all else that the tag leads to is found as before.
bool Placement::hide_strays(const SideChoice& sides) {
  bool more = false;
  for (const auto& folder : sides.folders()) {
    if (!folder.beside) continue;
    for (auto& [target, bind] : binds_) {
      const auto at = names_.files.find(bind.source);
      if (at == names_.files.end() || at->second != folder.wanted_by ||
          !found_by_tag_.contains(target) ||
          !inside_.world().real_path(folder_of(target) + "/" + folder.view_name).empty())
        continue;
      made_[target] = {kOtherClass, of_another_class(inside_.loader()), "", false};
      bind.source = std::string(kOwnFolder) + kOtherClass;
      bind.why = "hidden from RPATH and RUNPATH: found below " + mount_point_ +
                 ", where its plugins are beside it";
      more = true;
    }
  }
  return more;
}

}  // namespace heddle
