// SPDX-License-Identifier: MIT
#include <elf.h>
#include <linux/limits.h>

#include <algorithm>
#include <optional>

#include "base/try.hpp"
#include "resolver/search/name_search.hpp"

namespace heddle {

namespace {

/// The directory of `path` as ld.so computes l_origin: absolute, not resolved (elf/dl-object.c).
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

/// The kernel's object is in the chain from the start, by its soname (elf/setup-vdso.h); vdso(7).
bool is_vdso(std::string_view name) {
  return name == "linux-vdso.so.1" || name == "linux-gate.so.1" || name == "linux-vdso64.so.1" ||
         name == "linux-vdso32.so.1";
}

/// dl_main (elf/rtld.c) and _dl_map_object_deps (elf/dl-deps.c), up to the point where
/// LD_TRACE_LOADED_OBJECTS prints the chain.
class ProcessImage {
 public:
  ProcessImage(World& world, const LoaderProfile& loader, const SearchOptions& options)
      : world_(world), loader_(loader), options_(options) {}

  Result<Closure> run(const std::string& program) {
    TRY(start(program));
    add_node(0);
    preload(split_preload_variable(options_.ld_preload), "LD_PRELOAD");
    if (auto file = world_.read(loader_.preload_path))
      preload(split_preload_file(std::move(*file)), loader_.preload_path);
    load_dependencies();
    place_interpreter();
    return finish();
  }

 private:
  /// One node of ld.so's breadth-first list. Filters swap nodes in place, so it stays a linked
  /// list.
  struct Node {
    std::size_t map;
    bool done = false;
    bool prefetched = false;
    std::size_t next = kNone;
  };

  Result<void> start(const std::string& program) {
    FileFacts facts = TRY(world_.facts(program));
    const auto& elf = facts.elf;
    if (!elf.dynamic && !elf.interp)
      return fail_errno(program, "not a dynamic program or library", ENOEXEC);
    if (elf.elf_class != loader_.elf_class || elf.machine != loader_.machine)
      return fail_errno(program, "not for the machine of " + loader_.interpreter, ENOEXEC);

    LinkMap main;
    const auto interpreter = elf.interp.value_or(loader_.interpreter);
    // A program's /proc/self/exe is resolved; a library, which ld.so itself is started to load,
    // keeps its spelling (until 2.42, 9b646f5dc9).
    const bool resolved = elf.interp.has_value() || loader_.glibc_minor >= 42;
    const auto real = resolved ? world_.real_path(program) : std::string();
    main.origin = origin_of(world_, real.empty() ? program : real);
    main.names = {""};
    main.has_id = false;
    main.file = std::move(facts);
    main.requested_as = program;
    maps_.append(std::move(main));

    LinkMap rtld;
    rtld.name = interpreter;
    rtld.names = {interpreter};
    rtld.has_id = false;
    rtld.found_by = FoundBy::interpreter;
    rtld.file = TRY(world_.facts(interpreter));
    if (rtld.file.elf.soname && *rtld.file.elf.soname != interpreter)
      rtld.names.push_back(*rtld.file.elf.soname);
    rtld.requested_as = interpreter;
    interpreter_ = maps_.append(std::move(rtld));
    search_.emplace(world_, loader_, options_, maps_);
    return {};
  }

  std::size_t load(const std::string& name, std::size_t requester, bool preload,
                   std::string& reason) {
    if (const auto known = maps_.find(name); known != kNone) return known;
    std::size_t record = kNone;
    if (options_.explain) {
      record = closure_.searches.size();
      closure_.searches.push_back({name, requester, std::nullopt, {}});
      search_->record = &closure_.searches.back().probes;
    }
    auto found = search_->find(name, requester);
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

  void preload(const std::vector<std::string>& names, const std::string& where) {
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

  void take_needed(std::size_t requester, const std::string& name) {
    if (is_vdso(name)) return;
    std::string reason;
    const auto map = load(name, requester, false, reason);
    if (map == kNone) {
      closure_.missing.push_back({name, requester, reason});
      return;
    }
    maps_[requester].needs.push_back(map);
    auto& own = maps_[map];
    if (!own.needed_by && own.found_by == FoundBy::interpreter) own.needed_by = requester;
    if (!own.reserved) add_node(map);
  }

  /// Result: the requester's node.
  std::size_t take_filtee(std::size_t node, const Dependency& dependency, const std::string& name) {
    const auto requester = nodes_[node].map;
    std::string reason;
    const auto filtee = load(name, requester, false, reason);
    if (filtee == kNone) {
      if (dependency.kind == Dependency::Kind::auxiliary)
        closure_.warnings.push_back(name + ": auxiliary library of " + maps_[requester].name +
                                    ": " + reason + ": ld.so goes on without it");
      else
        closure_.missing.push_back({name, requester, reason});
      return node;
    }
    maps_[requester].needs.push_back(filtee);
    // The filtee goes before its filter. Without back links that means: the filtee takes the
    // filter's node, and the filter gets a new one behind it.
    const auto behind = nodes_.size();
    const auto saved = nodes_[node];
    nodes_.push_back(saved);
    nodes_[node].done = false;
    nodes_[node].map = filtee;
    if (maps_[filtee].reserved) {
      auto late = behind;
      while (nodes_[late].next != kNone && nodes_[nodes_[late].next].map != filtee)
        late = nodes_[late].next;
      if (nodes_[late].next == kNone) {
        nodes_[node] = saved;  // it is before the filter already
        nodes_.pop_back();
        return node;
      }
      nodes_[node].next = behind;
      const auto old = nodes_[late].next;
      if (tail_ == old) tail_ = late;
      nodes_[late].next = nodes_[old].next;
    } else {
      nodes_[node].next = behind;
      maps_[filtee].reserved = true;
    }
    maps_.move_before(filtee, requester);
    if (node == tail_) tail_ = behind;
    return behind;
  }

  std::size_t add_node(std::size_t map) {
    const auto node = nodes_.size();
    nodes_.push_back({map});
    if (tail_ != kNone) nodes_[tail_].next = node;
    tail_ = node;
    maps_[map].reserved = true;
    return node;
  }

  // _dl_map_object_deps of glibc's elf/dl-deps.c: breadth first, a filtee before its filter.

  void load_dependencies() {
    for (std::size_t run = 0; run != kNone;) {
      nodes_[run].done = true;
      auto node = run;
      const auto map = nodes_[run].map;
      prefetch_from(run);
      const auto dependencies = maps_[map].file.elf.dependencies;
      for (const auto& dependency : dependencies) {
        auto name = dependency.name;
        if (has_token(name)) {
          name = expand_tokens(name, search_->tokens(map));
          if (name.empty()) {
            closure_.warnings.push_back(dependency.name +
                                        ": a token in it has no value: ld.so ignores it");
            continue;
          }
        }
        if (dependency.kind == Dependency::Kind::needed)
          take_needed(map, name);
        else
          node = take_filtee(node, dependency, name);
      }
      if (nodes_[run].done) do
          run = nodes_[run].next;
        while (run != kNone && nodes_[run].done);
    }
  }

  /// The dependencies of all objects that are loaded and have not been reached: one level of the
  /// graph, whose files are read at the same time.
  void prefetch_from(std::size_t run) {
    if (nodes_[run].prefetched) return;
    std::vector<std::size_t> level;
    for (auto node = run; node != kNone; node = nodes_[node].next) {
      if (nodes_[node].prefetched) continue;
      nodes_[node].prefetched = true;
      level.push_back(nodes_[node].map);
    }
    search_->prefetch(level);
  }

  void place_interpreter() {
    maps_.unlink(interpreter_);
    std::size_t before = kNone;
    for (std::size_t node = 0; node != kNone; node = nodes_[node].next) {
      if (nodes_[node].map == interpreter_ && before != kNone) {
        interpreter_shown_ = true;
        break;
      }
      before = nodes_[node].map;
    }
    // Since 2.41 (8f8dd904c4) it is at the end even if nothing needs it.
    interpreter_shown_ = interpreter_shown_ || loader_.glibc_minor >= 41;
    if (interpreter_shown_) maps_.insert_after(interpreter_, before);
  }

  Closure finish() {
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

  World& world_;
  const LoaderProfile& loader_;
  const SearchOptions& options_;
  LinkMaps maps_;
  std::optional<NameSearch> search_;
  std::size_t interpreter_ = kNone;
  bool interpreter_shown_ = false;
  std::vector<Node> nodes_;
  std::size_t tail_ = kNone;
  Closure closure_;
};

}  // namespace

Result<Closure> resolve(World& world, const LoaderProfile& loader, const std::string& program,
                        const SearchOptions& options) {
  return ProcessImage(world, loader, options).run(program);
}

const char* to_string(FoundBy found_by) {
  static constexpr const char* kNames[] = {"program",         "preload", "rpath",   "runpath",
                                           "ld_library_path", "cache",   "default", "path",
                                           "interpreter"};
  return kNames[static_cast<std::size_t>(found_by)];
}

const char* to_string(Probe::Outcome outcome) {
  static constexpr const char* kNames[] = {"found",
                                           "no such file",
                                           "no such directory",
                                           "for another machine",
                                           "cannot be opened",
                                           "not a library ld.so accepts",
                                           "in a system directory, ruled out by nodeflib"};
  return kNames[static_cast<std::size_t>(outcome)];
}

std::vector<std::string> split_preload_variable(std::string_view text) {
  std::vector<std::string> names;
  for (std::size_t start = 0; start < text.size();) {
    const auto end = std::min(text.find_first_of(" :", start), text.size());
    const auto name = text.substr(start, end - start);
    start = end + 1;
    if (name.empty() || name.size() >= PATH_MAX) continue;
    names.emplace_back(name);
  }
  return names;
}

std::vector<std::string> split_preload_file(std::string text) {
  // dl_main searches each '#' from the file's start but over fewer and fewer bytes, so that a
  // second comment may be read as names. Copied: it decides what is loaded.
  for (std::size_t rest = text.size(); rest > 0;) {
    const auto at = std::string_view(text).substr(0, rest).find('#');
    if (at == text.npos) break;
    rest -= at;
    auto i = at;
    do text[i] = ' ';
    while (--rest > 0 && text[++i] != '\n');
  }
  std::vector<std::string> names;
  for (std::size_t start = 0; start < text.size();) {
    const auto end =
        std::min(text.find_first_of(std::string_view(": \t\n\0", 5), start), text.size());
    if (end > start) names.push_back(text.substr(start, end - start));
    if (end < text.size() && text[end] == '\0') break;
    start = end + 1;
  }
  return names;
}

}  // namespace heddle
