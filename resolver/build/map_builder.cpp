// SPDX-License-Identifier: MIT
#include "resolver/build/map_builder.hpp"

#include <elf.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <unordered_set>

#include "base/escape.hpp"
#include "base/fd.hpp"
#include "base/try.hpp"
#include "resolver/build/object_table.hpp"
#include "resolver/map/index_writer.hpp"
#include "resolver/map/learn_format.hpp"
#include "resolver/map/library_path.hpp"
#include "resolver/map/served_names.hpp"
#include "resolver/map/static_tls.hpp"
#include "resolver/search/name_search.hpp"

namespace heddle {
namespace {

namespace fs = std::filesystem;
using SortedNames = std::vector<std::pair<std::string, ObjectId>>;

SortedNames renumbered(const std::map<std::string, ObjectId>& names,
                       const std::vector<ObjectId>& rank) {
  SortedNames out;
  out.reserve(names.size());
  for (const auto& [name, id] : names) out.emplace_back(name, rank[id]);
  return out;
}

StaticTlsNeed tls_of(const Closure& closure) {
  std::vector<TlsBlock> blocks;
  for (std::size_t i = 1; i < closure.objects.size(); ++i) {
    const auto& elf = closure.objects[i].file.elf;
    if (elf.tls && closure.objects[i].found_by != FoundBy::interpreter)
      blocks.push_back({elf.tls->size, elf.tls->align, (elf.flags & DF_STATIC_TLS) != 0});
  }
  const auto& own = closure.objects[0].file.elf.tls;
  return static_tls_need(blocks, own ? own->align : 0);
}

/// LD_LIBRARY_PATH with relative elements made absolute.
std::string absolute_library_path(const std::string& value) {
  std::error_code error;
  const std::string cwd = fs::current_path(error).string();
  std::string out;
  library_path::put_absolute(value.data(), value.size(), cwd.c_str(),
                             [&](const char* bytes, std::size_t size) { out.append(bytes, size); });
  return out;
}

/// Whether the flat directory can have an entry of that name: a soname is any bytes of a file.
bool is_entry_name(const std::string& name) {
  return !name.empty() && name != "." && name != ".." && name != kOwnDirectory &&
         name.find('/') == std::string::npos && name.size() <= 255;
}

/// The names of one flat directory, and those that ld.so is guided by. Within one process a name
/// means one file, so the first meaning counts.
class ViewNames {
 public:
  explicit ViewNames(const ObjectTable& objects) : objects_(&objects) {}
  std::map<std::string, ObjectId> view;
  std::map<std::string, ObjectId> guided;

  /// Adds a closure whose objects have the ids `ids` (by position).
  ///
  /// The view gets every name: requested ones first, then sonames, then file names and the links
  /// beside them. `guided` gets only requested names and sonames of loaded files, which ld.so's
  /// search provably leads to that file, and all absolute paths of the file; another search for an
  /// alias might lead elsewhere. ld.so itself is in the view, never guided.
  void add_closure(const Closure& closure, const std::vector<ObjectId>& ids, RootIs root) {
    const std::size_t first = root == RootIs::program ? 1 : 0;
    for (std::size_t i = first; i < ids.size(); ++i)
      for (const auto& name : closure.objects[i].names) show(name, ids[i]);
    for (std::size_t i = first; i < ids.size(); ++i) show(soname(ids[i]), ids[i]);
    for (std::size_t i = first; i < ids.size(); ++i)
      for (const auto& name : objects_->file_names(ids[i])) show(name, ids[i]);
    // Two files of one closure, both requested by path, may share their only name.
    std::unordered_set<ObjectId> named;
    for (const auto& [name, id] : view) named.insert(id);
    for (std::size_t i = first; i < ids.size(); ++i)
      if (named.insert(ids[i]).second) show_otherwise(ids[i]);
    for (std::size_t i = first; i < ids.size(); ++i) {
      if (closure.objects[i].found_by == FoundBy::interpreter) continue;
      for (const auto& name : closure.objects[i].names) guided.emplace(name, ids[i]);
      if (!soname(ids[i]).empty()) guided.emplace(soname(ids[i]), ids[i]);
      guide_paths(ids[i]);
    }
  }

  /// Adds a library that a run opened as `name` (as MapProgram::guided has it). In the view it has
  /// a name that no search asks for.
  void add_library(const std::string& name, ObjectId id) {
    if (std::ranges::find(view, id, &std::pair<const std::string, ObjectId>::second) == view.end())
      show_otherwise(id);
    guided.emplace(name, id);
    guide_paths(id);
  }

  /// Adds one file under `relative` ("ucx/libuct_cma.so.0") and all its paths to `guided`.
  void add_plugin_file(const std::string& relative, ObjectId id) {
    view.emplace(relative, id);
    guide_paths(id);
  }

 private:
  const std::string& soname(ObjectId id) const { return (*objects_)[id].soname; }
  /// Result: whether the view now has the object under that name.
  bool show(const std::string& name, ObjectId id) {
    return is_entry_name(name) && view.emplace(name, id).first->second == id;
  }
  void show_otherwise(ObjectId id) {
    const auto file = fs::path((*objects_)[id].path).filename().string();
    for (int n = 2; !view.emplace(file + "~" + std::to_string(n), id).second;) ++n;
  }
  void guide_paths(ObjectId id) {
    for (const auto& path : objects_->paths(id)) guided.emplace(path, id);
  }

  const ObjectTable* objects_;
};

bool is_absolute(const std::string& path) { return path.starts_with('/'); }

/// ld.so's searches after the start of a program, by libraries that anything may have loaded.
class LateSearch {
 public:
  /// `with_rpath`: the libraries of the program, not the program itself, with an RPATH in effect.
  LateSearch(World& world, const LoaderProfile& loader, const SearchOptions& options,
             const std::string& program, FileFacts facts, std::set<std::string> with_rpath)
      : world_(world), with_rpath_(std::move(with_rpath)) {
    add_caller("", program, std::move(facts));
    search_.emplace(world, loader, options, maps_);
  }

  /// The file that `caller` gets for `name`, whatever loaded the caller; nullopt: none, or that
  /// depends on it: ld.so's search also goes through the RPATH of what did (dl-load.c, l_loader).
  std::optional<Found> find(const std::string& caller, const std::string& name) {
    const auto requester = requester_of(caller);
    if (!requester) return std::nullopt;
    const auto before = search_->probes.failed();
    auto found = search_->find(name, *requester);
    failed_ = search_->probes.failed() - before;
    if (found.candidate.verdict != Candidate::Verdict::usable) return std::nullopt;
    const bool is_own = found.by == FoundBy::rpath && found.searched_by == *requester;
    const bool inherits = *requester != 0 && !maps_[*requester].file.elf.runpath && !is_own;
    if (!inherits) return found;
    if (with_rpath_.size() > kMostLoaders) return std::nullopt;
    for (const auto& loader : with_rpath_) {
      const auto other = requester_of(loader);
      if (!other) return std::nullopt;
      const auto by_other = search_->find(name, *other).candidate;
      if (by_other.verdict != Candidate::Verdict::usable ||
          by_other.file->stamp.id != found.candidate.file->stamp.id)
        return std::nullopt;
    }
    return found;
  }
  /// Failed opens and stats of the last find(), for its own caller.
  std::uint64_t failed() const { return failed_; }

 private:
  /// Each has a search of its own for each name.
  static constexpr std::size_t kMostLoaders = 32;

  std::optional<std::size_t> requester_of(const std::string& caller) {
    if (!callers_.contains(caller)) {
      auto facts = world_.facts(caller);
      if (!facts) return std::nullopt;
      add_caller(caller, caller, std::move(*facts));
    }
    return callers_.at(caller);
  }
  void add_caller(const std::string& caller, const std::string& path, FileFacts facts) {
    LinkMap map;
    map.origin = fs::path(path).parent_path().string();
    map.file = std::move(facts);
    callers_.emplace(caller, maps_.append(std::move(map)));
  }

  World& world_;
  const std::set<std::string> with_rpath_;
  std::uint64_t failed_ = 0;
  LinkMaps maps_;
  std::map<std::string, std::size_t> callers_;
  std::optional<NameSearch> search_;
};

class MapBuilder {
 public:
  MapBuilder(World& world, const BuildOptions& options)
      : world_(world), options_(options), objects_(options.aliases) {}

  Result<BuildResult> run(const std::vector<AppRoot>& roots) {
    std::vector<std::string> paths;
    for (const auto& root : roots) paths.push_back(root.path);
    if (paths.size() > 1) world_.prefetch(paths);
    for (const auto& root : roots)
      if (auto added = add_root(root.path, root.kind); !added) {
        if (root.required) return fail(std::move(added.error()));
        result_.left_out.push_back({root.path, std::move(added.error())});
      }
    return finish();
  }

 private:
  Result<void> add_root(const std::string& path, RootIs kind) {
    const auto file = TRY(world_.facts(path));
    const auto loader = loader_for(file.elf.interp.value_or(LoaderProfile{}.interpreter));
    if (!loader) return fail(path, "cannot be resolved", loader.error().message());
    const auto closure = TRY(resolve(world_, *loader, path, options_.search));
    const auto ids = take_closure(closure);
    Root root{path, kind, {}, ViewNames(objects_)};
    root.program.interpreter = file.elf.interp.value_or("");
    describe(root, closure, ids);
    root.names.add_closure(closure, ids, kind);
    TRY(add_learned(root, *loader, closure));
    TRY(add_plugins(root, *loader));
    roots_.push_back(std::move(root));
    return {};
  }

  BuildResult finish() {
    MapContent& content = result_.content;
    std::ranges::sort(roots_, {}, &Root::path);
    const auto rank = objects_.put_into(content);
    // The files of an only view are in the mount's root too: they must not clash with its name.
    std::set<std::string> taken = {std::string(kOwnDirectory)};
    for (const auto& root : roots_)
      for (const auto& [name, id] : root.names.view) taken.insert(name.substr(0, name.find('/')));
    std::map<SortedNames, std::string> known;
    std::map<std::string, SortedNames> views;
    for (auto& root : roots_) {
      auto names = renumbered(root.names.view, rank);
      auto& view = known[names];
      if (view.empty()) {
        view = fs::path(root.path).filename().string();
        for (int n = 2; !taken.insert(view).second; ++n)
          view = fs::path(root.path).filename().string() + "-" + std::to_string(n);
        views.emplace(view, std::move(names));
      }
      root.view = view;
    }
    for (auto& [name, names] : views) content.views.push_back({name, std::move(names)});
    for (auto& root : roots_) {
      if (root.kind == RootIs::library) continue;
      MapProgram& program = root.program;
      const auto view = views.find(root.view);
      program.view = static_cast<ViewId>(std::distance(views.begin(), view));
      program.object = rank[program.object];
      program.guided = renumbered(root.names.guided, rank);
      for (auto& library : program.libraries) library.object = rank[library.object];
      content.programs.push_back(std::move(program));
    }
    for (const auto& object : content.objects)
      if (object.imports_dladdr && options_.plugin_directories.empty())
        result_.notes.push_back(escape_for_terminal(object.path) +
                                ": imports dladdr: may look for files beside itself (--plugins)");
    return std::move(result_);
  }

  struct Root {
    std::string path;
    RootIs kind;
    MapProgram program;
    ViewNames names;
    std::string view{};  ///< its name
  };

  Result<LoaderProfile> loader_for(const std::string& interpreter) {
    const auto known = loaders_.find(interpreter);
    if (known != loaders_.end()) return known->second;
    auto profile = read_loader_profile(world_, interpreter, options_.search.hwcaps_tunable);
    if (profile) loaders_.emplace(interpreter, *profile);
    return profile;
  }

  std::vector<ObjectId> take_closure(const Closure& closure) {
    std::vector<ObjectId> ids;
    ids.reserve(closure.objects.size());
    std::vector<std::string> paths;
    for (const auto& object : closure.objects) paths.push_back(object.path);
    objects_.prepare(paths);
    for (const auto& object : closure.objects)
      ids.push_back(objects_.add(object.path, object.file));
    return ids;
  }

  void describe(Root& root, const Closure& closure, const std::vector<ObjectId>& ids) {
    MapProgram& program = root.program;
    program.path = root.path;
    program.object = ids[0];
    program.library_path = absolute_library_path(options_.search.ld_library_path);
    program.hwcaps_tunable = options_.search.hwcaps_tunable;
    program.probes_unguided = closure.probes.failed();
    for (std::size_t i = 1; i < ids.size(); ++i) {
      const LoadedObject& object = closure.objects[i];
      program.libraries.push_back(
          {ids[i], object.requested_as, to_string(object.found_by),
           object.needed_by ? closure.objects[*object.needed_by].path : ""});
    }
    const StaticTlsNeed tls = tls_of(closure);
    program.static_tls_bytes = tls.optional_static_tls;
    if (tls.over_aligned)
      result_.notes.push_back(escape_for_terminal(root.path) +
                              ": a library's thread-local data is aligned more than an audited "
                              "program allows (fs-gen --loader env)");
    if (tls.too_many)
      result_.notes.push_back(escape_for_terminal(root.path) +
                              ": more libraries have thread-local data than an audited program "
                              "can have (fs-gen --loader env)");
    for (const auto& missing : closure.missing) {
      program.missing.push_back(missing.name);
      result_.missing.push_back(
          {root.path, missing.name, closure.objects[missing.needed_by].path, missing.reason});
    }
    for (const auto& warning : closure.warnings) result_.notes.push_back(warning);
  }

  /// Fails when the run found another file than the search does: the program had another
  /// environment, and the map cannot be right for both.
  Result<void> add_learned(Root& root, const LoaderProfile& loader, const Closure& closure) {
    const auto learned = options_.learned.find(root.path);
    if (learned == options_.learned.end()) return {};
    const auto elsewhere = [&](const std::string& name) {
      return fail(root.path, "left out of the map",
                  "in the run it found " + escape_for_terminal(name) +
                      " elsewhere: its environment was another");
    };
    const auto has_rpath = [](const ElfFacts& elf) {
      return elf.rpath && !elf.rpath->empty() && !elf.runpath;
    };
    std::set<std::string> with_rpath;
    for (std::size_t i = 1; i < closure.objects.size(); ++i)
      if (has_rpath(closure.objects[i].file.elf)) with_rpath.insert(closure.objects[i].path);
    std::vector<std::string> paths;
    for (const auto& library : learned->second) paths.push_back(library.path);
    world_.prefetch(paths);
    for (const auto& library : learned->second) {
      const auto file = world_.facts(library.path);
      if (file && has_rpath(file->elf)) with_rpath.insert(library.path);
      for (const auto& missing : closure.missing)
        if (library.name == missing.name) return elsewhere(missing.name);
    }
    LateSearch search(world_, loader, options_.search, root.path, closure.objects[0].file,
                      std::move(with_rpath));
    for (const auto& [caller, name, path] : learned->second) {
      const auto file = world_.facts(path);
      if (!file) continue;  // removed or unreadable: left to ld.so
      if (is_absolute(name)) {
        if (name == path) root.names.add_library(name, objects_.add(path, *file));
        continue;
      }
      // The start has loaded the libraries of these names, so that no search was made for them.
      const auto known = root.names.guided.find(name);
      // A guided caller has its object's path.
      std::set<std::string> spellings = {caller};
      if (!caller.empty())
        if (const auto facts = world_.facts(caller))
          spellings.insert(objects_[objects_.add(caller, *facts)].path);
      for (const auto& spelling : spellings) {
        const auto found = search.find(spelling, name);
        const bool agrees = found && found->candidate.file->stamp.id == file->stamp.id;
        if (known != root.names.guided.end()) {
          if (!agrees && objects_.add(path, *file) != known->second) return elsewhere(name);
        } else if (agrees) {
          result_.late_probes += search.failed();
          root.names.add_library(name + '\0' + spelling, objects_.add(found->path, *file));
        }
      }
    }
    return {};
  }

  Result<void> add_plugins(Root& root, const LoaderProfile& loader) {
    for (const auto& directory : options_.plugin_directories) {
      const auto files = TRY(list_plugin_directory(directory));
      for (const auto& [path, relative] : files) TRY(add_plugin(root, loader, path, relative));
    }
    return {};
  }

  Result<void> add_plugin(Root& root, const LoaderProfile& loader, const std::string& path,
                          const std::string& relative) {
    auto file = world_.facts(path);
    if (!file) {
      if (file.error().code() != ENOEXEC) return fail(std::move(file.error()));
      const auto id = TRY(objects_.add_data(path));
      root.names.add_plugin_file(relative, id);
      return {};
    }
    // The plugin's own NEEDED belong to the view too; searched as for a library that is opened by
    // its path alone.
    const auto closure = TRY(resolve(world_, loader, path, options_.search));
    const auto ids = take_closure(closure);
    root.names.add_plugin_file(relative, ids[0]);
    root.names.add_closure(closure, ids, RootIs::program);
    for (const auto& missing : closure.missing)
      result_.notes.push_back(escape_for_terminal(path) + ": plugin needs " +
                              escape_for_terminal(missing.name) + ": " + missing.reason);
    return {};
  }

  World& world_;
  const BuildOptions& options_;
  ObjectTable objects_;
  std::map<std::string, LoaderProfile> loaders_;
  std::vector<Root> roots_;
  BuildResult result_;
};

}  // namespace

Result<LearnedRun> read_learned_run(const std::string& path) {
  const auto log = TRY(read_file(path));
  LearnedRun out;
  std::array<std::string, learn_format::kFields> record;
  std::size_t field = 0;
  for (std::size_t at = 0;;) {
    const std::size_t end = log.find('\0', at);
    if (end == std::string::npos) break;
    record[field++] = log.substr(at, end - at);
    at = end + 1;
    if (field < record.size()) continue;
    field = 0;
    const auto& [kind, program, caller, name, file] = record;
    if (kind == learn_format::kProgram)
      out[program];
    else if (kind != learn_format::kLibrary)
      break;  // damaged
    else if (!name.empty() && is_plain_name(name) && is_absolute(file) &&
             (caller.empty() || is_absolute(caller)))
      out[program].insert({caller, name, file});
  }
  return out;
}

Result<std::vector<std::pair<std::string, std::string>>> list_plugin_directory(
    const std::string& directory) {
  std::error_code error;
  fs::path root = fs::absolute(directory).lexically_normal();
  if (!root.has_filename()) root = root.parent_path();  // "dir/"
  if (!root.has_filename()) return fail(directory, "not a plugin directory", "it has no name");
  fs::recursive_directory_iterator walk(root, error);
  if (error) return fail_errno(directory, "cannot list", error.value());
  std::vector<std::pair<std::string, std::string>> out;
  for (; walk != fs::recursive_directory_iterator(); walk.increment(error)) {
    if (error) return fail_errno(directory, "cannot list", error.value());
    if (!walk->is_regular_file(error)) continue;  // follows links
    const auto below = walk->path().lexically_relative(root.parent_path());
    out.emplace_back(walk->path().string(), below.string());
  }
  std::ranges::sort(out);
  return out;
}

Result<BuildResult> build_map(World& world, const std::vector<AppRoot>& roots,
                              const BuildOptions& options) {
  return MapBuilder(world, options).run(roots);
}

}  // namespace heddle
