// SPDX-License-Identifier: MIT
#include "resolver/search/name_search.hpp"

#include <elf.h>
#include <linux/limits.h>

#include <algorithm>
#include <cstring>
#include <unordered_map>
#include <unordered_set>

#include "base/elf_file.hpp"

// Every rule below is that of _dl_map_object, open_path and open_verify in glibc's elf/dl-load.c
// (2.36 read line by line; changes up to 2.42 by commit). Probes that differ from LD_DEBUG=libs are
// a wrong answer even if the closure is right: directory status is shared, so one probe too few
// changes later searches.

namespace heddle {

namespace {

constexpr std::uint8_t kAbiVersionEnd = 4;  // LIBC_ABI_MAX: default, UNIQUE, IFUNC, ABSOLUTE

bool is_abi_known(std::uint8_t os_abi, std::uint8_t version) {
  return version == 0 || (os_abi == ELFOSABI_GNU && version < kAbiVersionEnd);
}

Candidate fatal(std::string reason) {
  Candidate out;
  out.verdict = Candidate::Verdict::fatal;
  out.reason = std::move(reason);
  return out;
}

Candidate passed_over(std::uint8_t elf_class, const LoaderProfile& loader) {
  Candidate out;
  // ld.so's error if nothing else is found; for a foreign machine it is "no such file".
  if (elf_class != loader.elf_class)
    out.reason =
        std::string("wrong ELF class: ELFCLASS") + (loader.elf_class == ELFCLASS64 ? "32" : "64");
  out.verdict = Candidate::Verdict::passed_over;
  out.error = ENOENT;
  return out;
}

/// For a file without facts: the checks of open_verify on its header, in its order and with its
/// messages. `otherwise` is the reason when the header is valid.
Candidate verify_head(World& world, const LoaderProfile& loader, const std::string& path,
                      const Error& otherwise) {
  const auto head = world.read(path, World::Part::head);
  if (!head)
    return fatal("cannot read file data: " + std::string(std::strerror(head.error().code())));
  // In this machine's byte order, whatever the file says: so does ld.so.
  const auto header = ElfFile::raw_header(*head, loader.elf_class);
  if (!header) return fatal("file too short");
  const auto byte = [&](std::size_t i) { return header->e_ident[i]; };
  const auto machine = header->e_machine;
  if (std::memcmp(head->data(), ELFMAG, SELFMAG) != 0) return fatal("invalid ELF header");
  if (byte(EI_CLASS) != loader.elf_class) return passed_over(byte(EI_CLASS), loader);
  bool ident_good = byte(EI_DATA) == ELFDATA2LSB && byte(EI_VERSION) == EV_CURRENT &&
                    (byte(EI_OSABI) == ELFOSABI_SYSV || byte(EI_OSABI) == ELFOSABI_GNU) &&
                    is_abi_known(byte(EI_OSABI), byte(EI_ABIVERSION));
  for (std::size_t i = EI_PAD; i < EI_NIDENT; ++i) ident_good = ident_good && byte(i) == 0;
  if (!ident_good) {
    if (machine != loader.machine) return passed_over(loader.elf_class, loader);
    if (byte(EI_DATA) != ELFDATA2LSB) return fatal("ELF file data encoding not little-endian");
    if (byte(EI_VERSION) != EV_CURRENT)
      return fatal("ELF file version ident does not match current one");
    if (byte(EI_OSABI) != ELFOSABI_SYSV && byte(EI_OSABI) != ELFOSABI_GNU)
      return fatal("ELF file OS ABI invalid");
    if (!is_abi_known(byte(EI_OSABI), byte(EI_ABIVERSION)))
      return fatal("ELF file ABI version invalid");
    return fatal("nonzero padding in e_ident");
  }
  if (header->e_version != EV_CURRENT) return fatal("ELF file version does not match current one");
  if (machine != loader.machine) return passed_over(loader.elf_class, loader);
  if (header->e_type != ET_DYN && header->e_type != ET_EXEC)
    return fatal("only ET_DYN and ET_EXEC can be loaded");
  const auto entry_size = loader.elf_class == ELFCLASS64 ? sizeof(Elf64_Phdr) : sizeof(Elf32_Phdr);
  if (header->e_phentsize != entry_size) return fatal("ELF file's phentsize not the expected size");
  return fatal(otherwise.message());
}

}  // namespace

Candidate verify_candidate(World& world, const LoaderProfile& loader, const std::string& path) {
  auto facts = world.facts(path);
  if (!facts) {
    const int code = facts.error().code();
    if (code == ENOEXEC || code == EBADMSG || code == EISDIR)
      return verify_head(world, loader, path, facts.error());
    // A shortage of this process: searching on would find a wrong file.
    if (code == 0 || code == EMFILE || code == ENFILE || code == ENOMEM || code == EPROTO)
      return fatal(facts.error().message());
    Candidate out;
    out.error = code;
    return out;
  }
  const auto& elf = facts->elf;
  if (elf.elf_class != loader.elf_class) return passed_over(elf.elf_class, loader);
  // ld.so reads the machine of a big-endian file in its own order: only the raw bytes tell.
  const bool in_order = elf.data_encoding == ELFDATA2LSB &&
                        (elf.os_abi == ELFOSABI_SYSV || elf.os_abi == ELFOSABI_GNU) &&
                        is_abi_known(elf.os_abi, elf.abi_version) &&
                        (elf.type == ET_DYN || elf.type == ET_EXEC);
  if (!in_order)
    return verify_head(world, loader, path, Error(path, "not a file that ld.so can load"));
  if (elf.machine != loader.machine) return passed_over(elf.elf_class, loader);
  Candidate out;
  out.verdict = Candidate::Verdict::usable;
  out.file = std::move(*facts);
  return out;
}

std::string refusal_to_map(const ElfFacts& elf) {
  // The order of _dl_map_object_from_fd.
  if (elf.type == ET_EXEC) return "cannot dynamically load executable";
  if (!elf.dynamic) return "object file has no dynamic section";
  if ((elf.flags_1 & DF_1_PIE) != 0)
    return "cannot dynamically load position-independent executable";
  return {};
}

NameSearch::NameSearch(World& world, const LoaderProfile& loader, const SearchOptions& options,
                       LinkMaps& maps)
    : world_(world),
      loader_(loader),
      maps_(maps),
      dirs_(world, loader),
      default_(dirs_.default_list()) {
  if (options.ld_library_path.empty()) return;
  library_path_.emplace();
  library_path_->by = FoundBy::ld_library_path;
  dirs_.fill(*library_path_, options.ld_library_path, ":;", tokens(0));
}

SearchList* NameSearch::tagged(std::size_t map, FoundBy tag) {
  auto& own = maps_[map];
  auto& list = tag == FoundBy::rpath ? own.rpath : own.runpath;
  if (!list) {
    list.emplace();
    list->by = tag;
    list->owner = map;
    list->may_be_dropped = true;
    // RUNPATH replaces RPATH (elf/get-dynamic-info.h); an empty one counts as none.
    const auto& elf = own.file.elf;
    const auto& text = tag == FoundBy::rpath && !elf.runpath ? elf.rpath : elf.runpath;
    const bool hidden = tag == FoundBy::rpath && elf.runpath;
    if (text && !hidden && !text->empty()) dirs_.fill(*list, *text, ":", tokens(map));
    list->dropped = list->dirs.empty();
  }
  return list->dropped ? nullptr : &*list;
}

void NameSearch::lists_before_cache(std::size_t requester, std::vector<SearchList*>& out) {
  if (!maps_[requester].file.elf.runpath) {
    // The RPATHs of the requester, its loader and so on up; then the program's.
    bool did_program = false;
    for (auto map = requester; map != kNone; map = maps_[map].loader)
      if (auto* list = tagged(map, FoundBy::rpath)) {
        out.push_back(list);
        did_program = did_program || map == 0;
      }
    if (!did_program)
      if (auto* list = tagged(0, FoundBy::rpath)) out.push_back(list);
  }
  if (library_path_ && !library_path_->dirs.empty()) out.push_back(&*library_path_);
  if (auto* list = tagged(requester, FoundBy::runpath)) out.push_back(list);
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
  const std::string path(cached(attempt.name));
  if (path.empty()) return;
  if ((maps_[attempt.requester].file.elf.flags_1 & DF_1_NODEFLIB) != 0) {
    if (std::ranges::any_of(loader_.default_directories,
                            [&](const std::string& dir) { return path.starts_with(dir); })) {
      note(path, FoundBy::cache, attempt.requester, Probe::Outcome::in_system_dir);
      return;
    }
  }
  open(path, FoundBy::cache, attempt.requester, attempt);
}

Found NameSearch::find(const std::string& name, std::size_t requester) {
  Attempt attempt{name, EntryName(name), requester, name.size() > NAME_MAX};
  if (name.find('/') != name.npos) {
    const auto path = has_token(name) ? expand_tokens(name, tokens(requester)) : name;
    open(path, FoundBy::path, requester, attempt);
  } else {
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

std::string NameSearch::likely_path(const std::string& name, std::span<SearchDir* const> dirs) {
  const EntryName entry(name);
  for (auto* dir : dirs)
    for (const auto i : dirs_.present(*dir))
      if (world_.entry(dir->handles[i], entry) == World::Presence::present)
        return dir->name + dirs_.capability(i) + name;
  return {};
}

void NameSearch::prefetch(const std::vector<std::size_t>& requesters) {
  struct Wanted {
    std::string name;
    std::size_t requester;
  };
  std::vector<Wanted> wanted;
  std::unordered_set<std::string> seen;
  std::unordered_map<std::size_t, std::vector<SearchDir*>> dirs;  // before the cache, in order
  std::vector<std::string> unlisted;
  for (const auto requester : requesters) {
    bool searches = false;
    for (const auto& dependency : maps_[requester].file.elf.dependencies) {
      auto name = has_token(dependency.name) ? expand_tokens(dependency.name, tokens(requester))
                                             : dependency.name;
      if (name.empty() || maps_.is_known(name) || !seen.insert(name).second) continue;
      searches |= name.find('/') == name.npos;
      wanted.push_back({std::move(name), requester});
    }
    if (!searches) continue;
    std::vector<SearchList*> lists;
    lists_before_cache(requester, lists);
    for (const auto* list : lists)
      for (auto* dir : list->dirs) {
        dirs[requester].push_back(dir);
        if (dir->handles.back() == SearchDir::kNoHandle) unlisted.push_back(dir->name);
      }
  }
  world_.prefetch_directories(unlisted);
  std::vector<std::string> paths;
  for (auto& [name, requester] : wanted) {
    auto path = name.find('/') == name.npos ? likely_path(name, dirs[requester]) : name;
    if (path.empty()) path = cached(name);
    if (const auto* last = list_after_cache(requester); path.empty() && last != nullptr)
      path = likely_path(name, last->dirs);
    if (!path.empty()) paths.push_back(std::move(path));
  }
  if (paths.size() > 1) world_.prefetch(paths);  // else nothing to do in parallel
}

void NameSearch::note(std::string_view path, FoundBy by, std::size_t searched_by,
                      Probe::Outcome outcome) {
  if (record != nullptr) record->push_back({std::string(path), by, searched_by, outcome});
}

void NameSearch::open(const std::string& path, FoundBy by, std::size_t searched_by,
                      Attempt& attempt) {
  auto& candidate = attempt.found.candidate;
  candidate = verify_candidate(world_, loader_, path);
  using Verdict = Candidate::Verdict;
  using Outcome = Probe::Outcome;
  ++(candidate.verdict == Verdict::no_file ? probes.opens_failed : probes.opens_done);
  switch (candidate.verdict) {
    case Verdict::usable:
      attempt.found.path = path;
      attempt.found.by = by;
      if (by == FoundBy::rpath || by == FoundBy::runpath) attempt.found.searched_by = searched_by;
      note(path, by, searched_by, Outcome::found);
      break;
    case Verdict::no_file:
      note(path, by, searched_by,
           candidate.error == ENOENT ? Outcome::missing : Outcome::unreadable);
      break;
    case Verdict::passed_over:
      if (!candidate.reason.empty()) attempt.other_class = candidate.reason;
      note(path, by, searched_by, Outcome::wrong_class);
      break;
    case Verdict::fatal:
      attempt.found.path = path;
      note(path, by, searched_by, Outcome::not_elf);
      break;
  }
}

bool NameSearch::try_directory(SearchDir& dir, std::size_t i, const SearchList& list,
                               Attempt& attempt) {
  using Status = SearchDir::Status;
  const auto searched_by = list.may_be_dropped ? list.owner : attempt.requester;
  const auto handle = dirs_.handle(dir, i);
  const auto& capability = dirs_.capability(i);
  const auto spell = [&]() -> const std::string& {
    buffer_.assign(dir.name).append(capability).append(attempt.name);
    return buffer_;
  };
  if (world_.entry(handle, attempt.entry) == World::Presence::present && !attempt.name_too_long) {
    open(spell(), list.by, searched_by, attempt);
    if (attempt.ended()) {
      dir.status[i] = Status::existing;
      return true;
    }
    attempt.error = attempt.found.candidate.error;
  } else {
    ++probes.opens_failed;
    const auto length = dir.name.size() + capability.size() + attempt.name.size();
    const int directory_error = world_.state(handle).open_error();
    attempt.error = directory_error != 0                          ? directory_error
                    : attempt.name_too_long || length >= PATH_MAX ? ENAMETOOLONG
                                                                  : ENOENT;
    if (record != nullptr)
      note(spell(), list.by, searched_by,
           directory_error == 0 ? Probe::Outcome::missing : Probe::Outcome::no_directory);
  }
  if (dir.status[i] == Status::unknown) {
    // Up to 2.37 the slash was cut off before stat(2), which made "/" the empty path.
    const bool cut_to_nothing = loader_.glibc_minor < 38 && dir.name == "/" && capability.empty();
    const auto state = cut_to_nothing ? World::DirState{ENOENT, false} : world_.state(handle);
    ++(state.stat_error == 0 ? probes.stats_done : probes.stats_failed);
    if (state.stat_error != 0) attempt.error = state.stat_error;
    dir.status[i] = state.is_directory ? Status::existing : Status::nonexisting;
  }
  return false;
}

void NameSearch::walk(SearchList& list, Attempt& attempt) {
  bool any = false;
  for (auto* dir : list.dirs) {
    auto& live = dir->live;
    std::size_t kept = 0;
    for (std::size_t k = 0; k < live.size(); ++k) {
      const auto i = live[k];
      const bool ended = try_directory(*dir, i, list, attempt);
      if (dir->status[i] != SearchDir::Status::nonexisting) live[kept++] = i;
      if (!ended) continue;
      live.erase(live.begin() + static_cast<std::ptrdiff_t>(kept),
                 live.begin() + static_cast<std::ptrdiff_t>(k + 1));
      return;
    }
    live.resize(kept);
    // Any other error (ELOOP, ENAMETOOLONG, EMFILE) ends this list; until 2.39 (a8dcffb306) ENOTDIR
    // too.
    const int error = attempt.error;
    if (kept != 0 && error != ENOENT && error != EACCES &&
        !(error == ENOTDIR && loader_.glibc_minor >= 39))
      return;
    any = any || kept != 0;
  }
  if (!any && list.may_be_dropped) list.dropped = true;
}

}  // namespace heddle
