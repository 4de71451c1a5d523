// SPDX-License-Identifier: MIT
#include "resolver/search/process_image.hpp"

#include <elf.h>

#include <algorithm>

#include "resolver/search/preload_list.hpp"

namespace heddle {

namespace {

/// The folder of `path` as ld.so computes l_origin: made absolute by the current folder, not
/// resolved (elf/dl-object.c).
std::string origin_of(World& world, const std::string& path) {
  auto whole = path;
  if (!path.starts_with('/')) {
    whole = world.real_path(".");
    if (whole.empty()) return {};
    if (!whole.ends_with('/')) whole += '/';
    whole += path;
  }
  whole.resize(std::max<std::size_t>(whole.rfind('/'), 1));
  return whole;
}

}  // namespace

Result<void> ProcessImage::start(const std::string& program) {
  auto facts = world_.facts(program);
  if (!facts) return fail(facts.error());
  const auto& elf = facts->elf;
  if (!elf.dynamic && !elf.interp)
    return fail_errno(program, "not a dynamic program or library", ENOEXEC);
  if (elf.elf_class != loader_.elf_class || elf.machine != loader_.machine)
    return fail_errno(program, "not for the machine of " + loader_.interpreter, ENOEXEC);

  LinkMap main;
  const auto interpreter = elf.interp.value_or(loader_.interpreter);
  // The kernel starts a program and /proc/self/exe is resolved; a library is what ld.so itself was
  // asked to load, and keeps the spelling it was given (until 2.42, 9b646f5dc9).
  const bool resolved = elf.interp.has_value() || loader_.glibc_minor >= 42;
  const auto real = resolved ? world_.real_path(program) : std::string();
  main.origin = origin_of(world_, real.empty() ? program : real);
  main.names = {""};
  main.has_id = false;
  main.file = std::move(*facts);
  main.requested_as = program;
  maps_.append(std::move(main));

  auto interpreter_facts = world_.facts(interpreter);
  if (!interpreter_facts) return fail(interpreter_facts.error());
  LinkMap rtld;
  rtld.name = interpreter;
  rtld.names = {interpreter};
  rtld.has_id = false;
  rtld.found_by = FoundBy::interpreter;
  rtld.file = std::move(*interpreter_facts);
  if (rtld.file.elf.soname && *rtld.file.elf.soname != interpreter)
    rtld.names.push_back(*rtld.file.elf.soname);
  rtld.requested_as = interpreter;
  interpreter_ = maps_.append(std::move(rtld));
  search_.emplace(world_, loader_, options_, maps_);
  return {};
}

std::size_t ProcessImage::load(const std::string& name, std::size_t requester, bool preload,
                               std::string& reason) {
  if (const auto known = maps_.find(name); known != kNone) return known;
  std::size_t record = kNone;
  if (options_.explain) {
    record = closure_.searches.size();
    closure_.searches.push_back({name, requester, std::nullopt, {}});
    search_->record = &closure_.searches.back().probes;
  }
  auto found = search_->find(name, requester, preload);
  if (found.candidate.verdict != Candidate::Verdict::usable) {
    reason = found.candidate.reason.empty() ? "not found" : found.candidate.reason;
    if (found.candidate.verdict == Candidate::Verdict::fatal) reason = found.path + ": " + reason;
    return kNone;
  }
  auto& file = *found.candidate.file;
  auto map = maps_.find(file.stamp.id);
  if (map != kNone) {
    maps_.add_name(map, name);
  } else {
    if (reason = refusal_to_map(file.elf); !reason.empty()) {
      reason = found.path + ": " + reason;
      if (options_.explain)
        closure_.searches[record].probes.back().outcome = Probe::Outcome::not_elf;
      return kNone;
    }
    LinkMap loaded;
    loaded.origin = origin_of(world_, found.path);
    loaded.name = std::move(found.path);
    loaded.names = {name};
    loaded.file = std::move(file);
    loaded.loader = requester;
    loaded.found_by = preload ? FoundBy::preload : found.by;
    loaded.searched_by = found.searched_by;
    if (!preload) loaded.needed_by = requester;
    loaded.requested_as = name;
    map = maps_.append(std::move(loaded));
  }
  if (options_.explain) closure_.searches[record].result = map;
  return map;
}

void ProcessImage::preload(const std::vector<std::string>& names, const std::string& where) {
  for (const auto& name : names) {
    const auto before = maps_.size();
    std::string reason;
    const auto map = load(name, 0, true, reason);
    if (map == kNone)
      closure_.warnings.push_back(name + ": cannot be preloaded (" + where + "): " + reason +
                                  ": ld.so ignores it");
    else if (maps_.size() > before)
      add_node(map);
  }
}

void ProcessImage::place_interpreter() {
  maps_.unlink(interpreter_);
  std::size_t before = kNone;
  for (std::size_t node = 0; node != kNone; node = nodes_[node].next) {
    if (nodes_[node].map == interpreter_ && before != kNone) {
      interpreter_shown_ = true;
      break;
    }
    before = nodes_[node].map;
  }
  // Since 2.41 (8f8dd904c4) it is put back even if nothing needs it, at the end.
  interpreter_shown_ = interpreter_shown_ || loader_.glibc_minor >= 41;
  if (interpreter_shown_) maps_.insert_after(interpreter_, before);
}

Closure ProcessImage::finish() {
  std::vector<std::size_t> order;
  std::vector<bool> listed(maps_.size());
  for (std::size_t map = 0; map != kNone; map = maps_[map].next) {
    order.push_back(map);
    listed[map] = true;
  }
  const auto in_chain = order.size();
  for (std::size_t map = 0; map < maps_.size(); ++map)
    if (!listed[map] && map != interpreter_) order.push_back(map);
  std::vector<std::size_t> position(maps_.size(), 0);
  for (std::size_t i = 0; i < order.size(); ++i) position[order[i]] = i;
  const auto moved = [&](std::optional<std::size_t> map) {
    return map ? std::optional(position[*map]) : std::nullopt;
  };

  closure_.objects.reserve(order.size());
  for (const auto map : order) {
    auto& own = maps_[map];
    LoadedObject object;
    object.path = map == 0 ? own.requested_as : own.name;
    object.file = std::move(own.file);
    object.found_by = own.found_by;
    object.searched_by = moved(own.searched_by);
    object.needed_by = moved(own.needed_by);
    object.requested_as = std::move(own.requested_as);
    if (map != 0) object.names = std::move(own.names);
    for (const auto needed : own.needs) object.needs.push_back(position[needed]);
    object.before_program = closure_.objects.size() >= in_chain;
    closure_.objects.push_back(std::move(object));
  }
  for (auto& missing : closure_.missing) missing.needed_by = position[missing.needed_by];
  for (auto& search : closure_.searches) {
    search.requester = position[search.requester];
    search.result = moved(search.result);
    for (auto& probe : search.probes) probe.searched_by = position[probe.searched_by];
  }
  closure_.probes = search_->probes;
  return std::move(closure_);
}

Result<Closure> ProcessImage::run(const std::string& program) {
  if (auto started = start(program); !started) return fail(started.error());
  add_node(0);
  preload(split_preload_variable(options_.ld_preload, options_.secure), "LD_PRELOAD");
  if (auto file = world_.read(loader_.preload_path))
    preload(split_preload_file(std::move(*file)), loader_.preload_path);
  load_dependencies();
  place_interpreter();
  return finish();
}

Result<Closure> resolve(World& world, const LoaderProfile& loader, const std::string& program,
                        const SearchOptions& options) {
  return ProcessImage(world, loader, options).run(program);
}

}  // namespace heddle
