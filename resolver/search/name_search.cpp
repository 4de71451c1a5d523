// SPDX-License-Identifier: MIT
#include "resolver/search/name_search.hpp"

#include <elf.h>
#include <linux/limits.h>
#include <algorithm>

// The order of places and every odd rule below are those of _dl_map_object and open_path in glibc's
// elf/dl-load.c (2.36 read line by line; changes up to 2.42 by commit). A change here that makes
// the probes differ from LD_DEBUG=libs is a wrong answer somewhere, even if the closure stays the
// same: directory status is shared, so one probe too few changes the outcome of later searches.

namespace heddle {

NameSearch::NameSearch(World& world, const LoaderProfile& loader, const SearchOptions& options,
                       LinkMaps& maps)
    : world_(world),
      loader_(loader),
      options_(options),
      maps_(maps),
      dirs_(world, loader),
      default_(dirs_.default_list()) {
  if (options.ld_library_path.empty() || options.secure) return;
  library_path_.emplace();
  library_path_->by = FoundBy::ld_library_path;
  dirs_.fill(*library_path_, options.ld_library_path, ":;", tokens(0));
}

TokenValues NameSearch::tokens(std::size_t map) const {
  TokenValues values{maps_[map].origin, loader_.platform, loader_.lib};
  values.secure = options_.secure;
  values.is_program = map == 0;
  values.trusted = &loader_.default_directories;
  return values;
}

SearchList* NameSearch::rpath(std::size_t map) {
  auto& own = maps_[map];
  if (!own.rpath) {
    own.rpath.emplace();
    own.rpath->by = FoundBy::rpath;
    own.rpath->owner = map;
    own.rpath->may_be_dropped = true;
    // With RUNPATH there RPATH does not exist (elf/get-dynamic-info.h); an empty one is none.
    const auto& text = own.file.elf.rpath;
    if (text && !own.file.elf.runpath && !text->empty())
      dirs_.fill(*own.rpath, *text, ":", tokens(map));
    own.rpath->dropped = own.rpath->dirs.empty();
  }
  return own.rpath->dropped ? nullptr : &*own.rpath;
}

SearchList* NameSearch::runpath(std::size_t map) {
  auto& own = maps_[map];
  if (!own.runpath) {
    own.runpath.emplace();
    own.runpath->by = FoundBy::runpath;
    own.runpath->owner = map;
    own.runpath->may_be_dropped = true;
    const auto& text = own.file.elf.runpath;
    if (text && !text->empty()) dirs_.fill(*own.runpath, *text, ":", tokens(map));
    own.runpath->dropped = own.runpath->dirs.empty();
  }
  return own.runpath->dropped ? nullptr : &*own.runpath;
}

void NameSearch::lists_before_cache(std::size_t requester, std::vector<SearchList*>& out) {
  if (!maps_[requester].file.elf.runpath) {
    // The requester's RPATH, its loader's, and so on up; then the program's if it was not among
    // them.
    bool did_program = false;
    for (auto map = requester; map != kNone; map = maps_[map].loader)
      if (auto* list = rpath(map)) {
        out.push_back(list);
        did_program = did_program || map == 0;
      }
    if (!did_program)
      if (auto* list = rpath(0)) out.push_back(list);
  }
  if (library_path_ && !library_path_->dirs.empty()) out.push_back(&*library_path_);
  if (auto* list = runpath(requester)) out.push_back(list);
}

SearchList* NameSearch::list_after_cache(std::size_t requester) {
  return (maps_[requester].file.elf.flags_1 & DF_1_NODEFLIB) != 0 ? nullptr : &default_;
}

std::string_view NameSearch::cached(const std::string& name) {
  if (!cache_) {
    auto bytes = world_.read(loader_.cache_path);
    cache_ = bytes ? LdSoCache(std::move(*bytes), loader_) : LdSoCache();
  }
  return cache_->lookup(name);
}

void NameSearch::try_cache(Attempt& attempt) {
  if (attempt.preload && options_.secure) return;
  const std::string path(cached(attempt.name));
  if (path.empty()) return;
  if ((maps_[attempt.requester].file.elf.flags_1 & DF_1_NODEFLIB) != 0) {
    const auto& system = loader_.default_directories;
    if (std::any_of(system.begin(), system.end(),
                    [&](const std::string& dir) { return path.starts_with(dir); })) {
      note(path, FoundBy::cache, attempt.requester, Probe::Outcome::in_system_dir);
      return;
    }
  }
  open(path, FoundBy::cache, attempt.requester, attempt);
}

Found NameSearch::find(const std::string& name, std::size_t requester, bool preload) {
  Attempt attempt{name, EntryName(name), requester, preload, name.size() > NAME_MAX};
  if (name.find('/') != name.npos) {
    const auto path = has_token(name) ? expand_tokens(name, tokens(requester)) : name;
    open(path, FoundBy::path, requester, attempt);
  } else {
    // Lists are made one by one: a list that is dropped on the way must not be seen again.
    std::vector<SearchList*> lists;
    lists_before_cache(requester, lists);
    for (auto* list : lists)
      if (!attempt.ended() && !list->dropped) walk(*list, attempt);
    if (!attempt.ended()) try_cache(attempt);
    if (!attempt.ended())
      if (auto* list = list_after_cache(requester)) walk(*list, attempt);
  }
  if (!attempt.ended()) attempt.found.candidate.reason = attempt.other_class;
  return std::move(attempt.found);
}

std::string NameSearch::likely_path(const std::string& name, const std::vector<SearchList*>& lists,
                                    SearchList* last) {
  const EntryName entry(name);
  const auto in_list = [&](const SearchList& list) -> std::string {
    for (auto* dir : list.dirs)
      for (const auto i : dirs_.present(*dir))
        if (world_.entry(dir->handles[i], entry) == World::Presence::present)
          return dir->name + dirs_.capability(i) + name;
    return {};
  };
  for (const auto* list : lists)
    if (auto path = in_list(*list); !path.empty()) return path;
  if (const auto path = cached(name); !path.empty()) return std::string(path);
  return last == nullptr ? std::string() : in_list(*last);
}

void NameSearch::prefetch(std::size_t requester) {
  const auto& dependencies = maps_[requester].file.elf.dependencies;
  if (dependencies.size() < 2) return;  // nothing to do in parallel
  std::vector<std::string> paths;
  std::vector<SearchList*> lists;
  lists_before_cache(requester, lists);
  auto* last = list_after_cache(requester);
  for (const auto& dependency : dependencies) {
    auto name = has_token(dependency.name) ? expand_tokens(dependency.name, tokens(requester))
                                           : dependency.name;
    if (name.empty() || maps_.is_known(name)) continue;
    if (name.find('/') == name.npos) name = likely_path(name, lists, last);
    if (!name.empty()) paths.push_back(std::move(name));
  }
  if (paths.size() > 1) world_.prefetch(paths);
}

}  // namespace heddle
