// SPDX-License-Identifier: MIT
#include "compat/loaded_set.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace heddle::compat {
namespace {

void note_names(LoadedSet& set) {
  // The first in ld.so's order holds, as in find_needed.
  for (std::size_t i = 1; i < set.closure.objects.size(); ++i) {
    const auto& object = set.closure.objects[i];
    set.by_name.emplace(object.path, i);
    for (const auto& name : object.names) set.by_name.emplace(name, i);
    if (object.file.elf.soname) set.by_name.emplace(*object.file.elf.soname, i);
  }
}

void note_missing(LoadedSet& set) {
  for (const auto& missing : set.closure.missing) {
    Reason reason;
    const bool absent = missing.reason == "not found";
    reason.kind = absent ? Reason::Kind::library_missing : Reason::Kind::library_unusable;
    reason.subject = missing.name;
    if (!absent) reason.detail = missing.reason;
    if (missing.needed_by != 0)
      reason.required_by = shown_name(set.closure.objects[missing.needed_by]);
    set.reasons.push_back(std::move(reason));
  }
}

void note_isa(Target& target, LoadedSet& set) {
  // elf/dl-prop.h, since 2.33: every object is held against the CPU.
  const auto cpu = target.isa_levels();
  if (cpu == 0 || set.glibc_minor < 33) return;
  for (std::size_t i = 1; i < set.closure.objects.size(); ++i) {
    const auto& object = set.closure.objects[i];
    const auto lacking = target.notes(object.path).isa_needed & ~cpu;
    if (lacking == 0) continue;
    Reason reason;
    reason.kind = Reason::Kind::isa_too_new;
    reason.subject = highest_isa_level(lacking);
    reason.required_by = shown_name(object);
    reason.path = object.path;
    set.reasons.push_back(std::move(reason));
  }
}

void note_symbols(Target& target, LoadedSet& set) {
  const auto& objects = set.closure.objects;
  std::vector<std::string> paths;
  for (std::size_t i = 1; i < objects.size(); ++i) paths.push_back(objects[i].path);
  target.prefetch_symbols(paths);
  std::vector<LoadedSet::Open> wanted;
  for (std::size_t i = 1; i < objects.size(); ++i) {
    auto elf = target.symbols(objects[i].path);
    if (!elf || !*elf) {
      set.symbols_known = false;
      continue;
    }
    set.exports.add(**elf);
    for (auto& symbol : (*elf)->undefined_symbols) {
      if (symbol.weak) continue;
      const SymbolSet::Reference reference(symbol);
      wanted.push_back({std::move(symbol), reference, shown_name(objects[i])});
    }
  }
  // One library without symbols might be the one that has them.
  if (!set.symbols_known) return;
  std::copy_if(std::make_move_iterator(wanted.begin()), std::make_move_iterator(wanted.end()),
               std::back_inserter(set.open),
               [&](const auto& open) { return !set.exports.satisfies(open.reference); });
}

}  // namespace

std::string shown_name(const LoadedObject& object) {
  if (object.file.elf.soname && !object.file.elf.soname->empty()) return *object.file.elf.soname;
  return object.path.substr(object.path.rfind('/') + 1);
}

void check_versions(const LoadedSet& set, const std::vector<VersionNeed>& needs,
                    const std::string& required_by, std::vector<Reason>& out) {
  for (const auto& need : needs) {
    const auto found = set.by_name.find(need.file);
    if (found == set.by_name.end()) continue;  // missing: said already
    const auto& provider = set.closure.objects[found->second];
    const auto& defined = provider.file.elf.version_definitions;
    if (std::find(defined.begin(), defined.end(), need.version) != defined.end()) continue;
    Reason reason;
    reason.subject = need.version;
    reason.library = need.file;
    reason.required_by = required_by;
    reason.path = provider.path;
    if (defined.empty()) {
      // ld.so says so on stderr and goes on.
      reason.kind = Reason::Kind::no_version_information;
      reason.weight = Verdict::degraded;
    } else if (need.weak) {
      reason.kind = Reason::Kind::weak_version_missing;
      reason.weight = Verdict::degraded;
    } else {
      reason.kind = Reason::Kind::version_missing;
    }
    out.push_back(std::move(reason));
  }
}

Result<LoadedSet> make_loaded_set(Target& target, const Program& program) {
  auto loaded = target.load(program);
  if (!loaded) return fail(std::move(loaded.error()));
  LoadedSet set;
  set.refused = std::move(loaded->refused);
  if (set.refused) return set;
  for (const auto& folder : loaded->not_searched) {
    Reason reason;
    reason.kind = Reason::Kind::not_judged;
    reason.weight = Verdict::degraded;
    reason.subject = folder;
    reason.detail = "not searched: outside the server's library directories, or it does not answer";
    set.reasons.push_back(std::move(reason));
  }
  set.closure = std::move(loaded->closure);
  set.glibc_minor = loaded->glibc_minor;
  note_names(set);
  note_missing(set);
  for (std::size_t i = 1; i < set.closure.objects.size(); ++i) {
    const auto& object = set.closure.objects[i];
    check_versions(set, object.file.elf.version_needs, shown_name(object), set.reasons);
  }
  note_isa(target, set);
  // With a library missing, what it would have provided is missing too: that says nothing new.
  if (set.closure.missing.empty()) note_symbols(target, set);
  for (auto& reason : set.reasons)
    if (!reason.path.empty()) reason.package = target.package_of(reason.path);
  return set;
}

}  // namespace heddle::compat
