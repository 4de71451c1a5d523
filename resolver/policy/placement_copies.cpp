// SPDX-License-Identifier: MIT
// Placement: folders of the image that the host's files must not simply go into: those of copies
// of MPI, whose users nobody named, and those without a place for plugins.
#include <elf.h>

#include <algorithm>
#include <cstring>

#include "base/folder_of.hpp"
#include "resolver/policy/cache_place.hpp"
#include "resolver/policy/closure_checks.hpp"
#include "resolver/policy/placement.hpp"
#include "resolver/policy/versions.hpp"

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

/// What only the MPI itself uses, and is the host's with it.
bool is_of_mpi(const Pick* pick) {
  return pick != nullptr &&
         (pick->host.stack_part == "Open MPI" || pick->host.stack_part == "PRRTE");
}

std::set<std::string> versions_of(const ElfFacts& elf) {
  return {elf.version_definitions.begin(), elf.version_definitions.end()};
}

}  // namespace

/// "X lacks Y of Z" for a file of a copy's folder that the host's would go over, whose users nobody
/// has asked about: versions that the image's has, or symbols where it has none.
std::string Placement::misfit_of_copies(const Closure& closure, const SideChoice& sides) {
  for (const auto& object : closure.objects) {
    if (object.found_by != FoundBy::ld_library_path || is_hosts(object.path)) continue;
    const auto& elf = object.file.elf;
    const auto at = names_.sonames.find(elf.soname.value_or(""));
    const auto host =
        at == names_.sonames.end() ? names_.files.end() : names_.files.find(at->second);
    if (host == names_.files.end() || is_of_mpi(sides.find(at->first))) continue;
    const auto file = host_.facts(host->second);
    if (!file) return file.error().message();
    const auto lacking = elf.version_definitions.empty()
                             ? missing_offers(inside_symbols_.exports(object.path),
                                              host_symbols_.exports(host->second))
                             : missing_offers(versions_of(elf), versions_of(file->elf));
    if (!lacking.empty())
      return host->second + " lacks " + shortened(lacking) + " of " + object.path;
  }
  return {};
}

/// "X needs Y, which Z lacks" for a file of the host that would have Z from a copy's folder, and
/// was decided on for another that has Y.
std::string Placement::misfit_for_host(const Closure& closure, SwappedWorld& world,
                                       const SideChoice& sides) {
  for (const auto& object : closure.objects) {
    const auto host = world.host_file(object.path);
    const auto* facts = host.empty() ? nullptr : host_symbols_.of(host);
    if (facts == nullptr) continue;
    for (const auto next : object.needs) {
      const auto& found = closure.objects[next];
      const auto* pick = sides.find(found.file.elf.soname.value_or(""));
      if (found.found_by != FoundBy::ld_library_path || is_hosts(found.path) || pick == nullptr)
        continue;
      const auto lost = lost_symbols(*facts, host_symbols_.exports(pick->host.path),
                                     inside_symbols_.exports(found.path));
      if (!lost.empty())
        return host + " needs " + shortened(lost) + ", which " + found.path + " lacks";
    }
  }
  return {};
}

/// A copy of MPI that only programs find that nobody named: most likely by RPATH, so the host's
/// library that stands there looks for its own in that folder first, as by LD_LIBRARY_PATH. What
/// it finds must be the host's too, or do for it; else nothing is bound in that folder. `why`: it
/// does not.
bool Placement::bind_strays_of_copy(const StackPart& part, SwappedWorld& world,
                                    const LoaderProfile& loader, const SideChoice& sides,
                                    std::string& why) {
  const auto folder = folder_of(part.path);
  if (folder.find_first_of(":;$") != folder.npos) why = "its name is none for a search path";
  if (!why.empty()) return false;
  auto options = search_;
  options.ld_library_path = folder;
  options.ld_library_path_set = true;
  const auto closure = resolve(world, loader, part.path, options);
  why = closure ? misfit_of_copies(*closure, sides) : closure.error().message();
  if (!why.empty()) return false;
  for (const auto& object : closure->objects)
    if (object.found_by == FoundBy::ld_library_path)
      found_by_tag_.insert(inside_.world().real_path(object.path));
  if (bind_strays(*closure)) return true;
  why = misfit_for_host(*closure, world, sides);
  if (const auto lines = unmet_needs(*closure); !lines.empty()) why = lines[0].line;
  if (!closure->missing.empty()) why = closure->missing[0].name + " would not be found";
  return false;
}

bool Placement::bind_strays_of_copies(SwappedWorld& world, const LoaderProfile& loader,
                                      const SideChoice& sides) {
  bool more = false;
  for (const auto& part : stack_.copies) {
    if (stack_.stays.contains(folder_of(part.path))) continue;
    std::string why;
    more |= bind_strays_of_copy(part, world, loader, sides, why);
    if (!why.empty() && stack_.leave(part, why)) return true;
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
