// SPDX-License-Identifier: MIT
#include "resolver/build/map_builder.hpp"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <set>

#include "base/escape.hpp"
#include "base/fd.hpp"
#include "base/open_regular.hpp"
#include "resolver/build/object_table.hpp"
#include "resolver/build/plugin_folder.hpp"
#include "resolver/build/view_names.hpp"
#include "resolver/map/library_path.hpp"
#include "resolver/map/served_names.hpp"
#include "resolver/map/static_tls.hpp"

namespace heddle {
namespace {

using SortedNames = std::vector<std::pair<std::string, ObjectId>>;

SortedNames renumbered(const std::map<std::string, ObjectId>& names,
                       const std::vector<ObjectId>& rank) {
  SortedNames out;
  out.reserve(names.size());
  for (const auto& [name, id] : names) out.emplace_back(name, rank[id]);
  return out;
}

constexpr std::uint64_t kStaticTls = 0x10;  // DF_STATIC_TLS

StaticTlsNeed tls_of(const Closure& closure) {
  std::vector<TlsBlock> blocks;
  for (std::size_t i = 1; i < closure.objects.size(); ++i) {
    const auto& elf = closure.objects[i].file.elf;
    if (elf.tls && closure.objects[i].found_by != FoundBy::interpreter)
      blocks.push_back({elf.tls->size, elf.tls->align, (elf.flags & kStaticTls) != 0});
  }
  const auto& own = closure.objects[0].file.elf.tls;
  return static_tls_need(blocks, own ? own->align : 0);
}

/// LD_LIBRARY_PATH with relative elements made absolute: the same text means other folders where a
/// process stands elsewhere.
std::string absolute_library_path(const std::string& value) {
  std::error_code error;
  const std::string cwd = std::filesystem::current_path(error).string();
  std::string out;
  library_path::put_absolute(value.data(), value.size(), cwd.c_str(),
                             [&](const char* bytes, std::size_t size) { out.append(bytes, size); });
  return out;
}

class MapBuilder {
 public:
  MapBuilder(World& world, const BuildOptions& options) : world_(world), options_(options) {}

  Result<void> add_root(const std::string& path, RootIs kind);
  BuildResult finish() &&;
  void leave_out(const std::string& path, Error reason) {
    result_.left_out.push_back({path, std::move(reason)});
  }

 private:
  struct Root {
    std::string path;
    RootIs kind;
    MapProgram program;
    ViewNames names;
  };

  Result<LoaderProfile> loader_for(const std::string& interpreter);
  Result<std::vector<ObjectId>> take_closure(const Closure& closure);
  Result<void> add_learned(Root& root, const Closure& closure);
  Result<void> add_plugins(Root& root, const LoaderProfile& loader);
  Result<void> add_plugin(Root& root, const LoaderProfile& loader, const std::string& path,
                          const std::string& relative);
  void describe(Root& root, const Closure& closure, const std::vector<ObjectId>& ids);
  ViewId view_for(const Root& root, const std::vector<ObjectId>& rank,
                  std::map<SortedNames, ViewId>& known);

  World& world_;
  const BuildOptions& options_;
  ObjectTable objects_;
  std::map<std::string, LoaderProfile> loaders_;
  std::vector<Root> roots_;
  std::set<std::string> view_names_;
  BuildResult result_;
};

Result<LoaderProfile> MapBuilder::loader_for(const std::string& interpreter) {
  const auto known = loaders_.find(interpreter);
  if (known != loaders_.end()) return known->second;
  auto profile = read_loader_profile(world_, interpreter);
  if (profile) loaders_.emplace(interpreter, *profile);
  return profile;
}

Result<std::vector<ObjectId>> MapBuilder::take_closure(const Closure& closure) {
  std::vector<ObjectId> ids;
  ids.reserve(closure.objects.size());
  for (const auto& object : closure.objects) ids.push_back(objects_.add(object.path, object.file));
  return ids;
}

Result<void> MapBuilder::add_root(const std::string& path, RootIs kind) {
  auto file = world_.facts(path);
  if (!file) return fail(std::move(file.error()));
  auto loader = loader_for(file->elf.interp.value_or(LoaderProfile{}.interpreter));
  if (!loader) return fail(path, "cannot be resolved", loader.error().message());
  auto closure = resolve(world_, *loader, path, options_.search);
  if (!closure) return fail(std::move(closure.error()));
  auto ids = take_closure(*closure);
  if (!ids) return fail(std::move(ids.error()));

  Root root{path, kind, {}, {}};
  root.program.interpreter = file->elf.interp.value_or("");
  describe(root, *closure, *ids);
  add_closure(root.names, objects_, *closure, *ids, kind);
  if (auto added = add_learned(root, *closure); !added) return added;
  if (auto added = add_plugins(root, *loader); !added) return added;
  roots_.push_back(std::move(root));
  return {};
}

void MapBuilder::describe(Root& root, const Closure& closure, const std::vector<ObjectId>& ids) {
  MapProgram& program = root.program;
  program.path = root.path;
  program.object = ids[0];
  program.library_path = absolute_library_path(options_.search.ld_library_path);
  program.probes_unguided = closure.probes.failed();
  for (std::size_t i = 1; i < ids.size(); ++i) {
    const LoadedObject& object = closure.objects[i];
    program.libraries.push_back({ids[i], object.requested_as, to_string(object.found_by),
                                 object.needed_by ? closure.objects[*object.needed_by].path : ""});
  }
  const StaticTlsNeed tls = tls_of(closure);
  program.static_tls_bytes = tls.optional_static_tls;
  if (tls.over_aligned)
    result_.notes.push_back(escape_for_terminal(root.path) +
                            ": a library's thread-local data is aligned more than an audited "
                            "program allows (fs-gen --loader env)");
  for (const auto& missing : closure.missing) {
    program.missing.push_back(missing.name);
    result_.missing.push_back(
        {root.path, missing.name, closure.objects[missing.needed_by].path, missing.reason});
  }
  for (const auto& warning : closure.warnings) result_.notes.push_back(warning);
}

/// Fails when the run found another file than the search does: the program was started with another
/// environment than ours, and a map cannot hold for both.
Result<void> MapBuilder::add_learned(Root& root, const Closure& closure) {
  const auto found = options_.learned.find(root.path);
  if (found == options_.learned.end()) return {};
  const auto elsewhere = [&](const std::string& name) {
    return fail(root.path, "left out of the map",
                "in the run it found " + escape_for_terminal(name) +
                    " elsewhere: its environment was another");
  };
  for (const auto& name : found->second.ambiguous)
    if (root.names.guided.contains(name)) return elsewhere(name);
  for (const auto& missing : closure.missing)
    if (found->second.libraries.contains(missing.name)) return elsewhere(missing.name);
  for (const auto& [name, path] : found->second.libraries) {
    const auto file = world_.facts(path);
    if (!file) continue;  // gone again, or unreadable for us: ld.so's to find
    const ObjectId id = objects_.add(path, *file);
    const auto known = root.names.guided.find(name);
    if (known != root.names.guided.end() && known->second != id) return elsewhere(name);
    add_library(root.names, objects_, name, id);
  }
  return {};
}

Result<void> MapBuilder::add_plugins(Root& root, const LoaderProfile& loader) {
  for (const auto& folder : options_.plugin_folders) {
    auto files = list_plugin_folder(folder);
    if (!files) return fail(std::move(files.error()));
    for (const auto& [path, relative] : *files)
      if (auto added = add_plugin(root, loader, path, relative); !added) return added;
  }
  return {};
}

Result<void> MapBuilder::add_plugin(Root& root, const LoaderProfile& loader,
                                    const std::string& path, const std::string& relative) {
  auto file = world_.facts(path);
  if (!file) {
    if (file.error().code() != ENOEXEC) return fail(std::move(file.error()));
    auto fd = open_regular(path);
    if (!fd) return fail(std::move(fd.error()));
    struct stat st {};
    if (::fstat(fd->get(), &st) != 0) return fail_errno(path, "cannot stat");
    auto hash = hash_file(fd->get(), path);
    if (!hash) return fail(std::move(hash.error()));
    add_plugin_file(root.names, objects_, relative,
                    objects_.add_data(path, file_stamp(st), st.st_mode, *hash));
    return {};
  }
  // The plugin's own NEEDED belong to the view, or the mixture begins: they are searched as ld.so
  // would for a library that is opened from nowhere in particular.
  auto closure = resolve(world_, loader, path, options_.search);
  if (!closure) return fail(std::move(closure.error()));
  auto ids = take_closure(*closure);
  if (!ids) return fail(std::move(ids.error()));
  add_plugin_file(root.names, objects_, relative, (*ids)[0]);
  add_closure(root.names, objects_, *closure, *ids, RootIs::program);
  for (const auto& missing : closure->missing)
    result_.notes.push_back(escape_for_terminal(path) + ": plugin needs " +
                            escape_for_terminal(missing.name) + ": " + missing.reason);
  return {};
}

ViewId MapBuilder::view_for(const Root& root, const std::vector<ObjectId>& rank,
                            std::map<SortedNames, ViewId>& known) {
  auto names = renumbered(root.names.view, rank);
  const auto [found, is_new] =
      known.emplace(std::move(names), static_cast<ViewId>(result_.content.views.size()));
  if (is_new) {
    // The only view's files stand in the mount's root beside it: no name of a file may be its name.
    const auto base = std::filesystem::path(root.path).filename().string();
    std::string name = base;
    for (int n = 2; !view_names_.insert(name).second; ++n) name = base + "-" + std::to_string(n);
    result_.content.views.push_back({std::move(name), found->first});
  }
  return found->second;
}

BuildResult MapBuilder::finish() && {
  MapContent& content = result_.content;
  std::sort(roots_.begin(), roots_.end(),
            [](const Root& a, const Root& b) { return a.path < b.path; });
  const auto rank = objects_.ranks();
  view_names_.insert(std::string(kOwnFolder));
  for (const auto& root : roots_)
    for (const auto& [name, id] : root.names.view)
      view_names_.insert(name.substr(0, name.find('/')));
  std::map<SortedNames, ViewId> known;
  for (auto& root : roots_) {
    const ViewId view = view_for(root, rank, known);
    if (root.kind == RootIs::library) continue;
    MapProgram& program = root.program;
    program.view = view;
    program.object = rank[program.object];
    program.guided = renumbered(root.names.guided, rank);
    for (auto& library : program.libraries) library.object = rank[library.object];
    content.programs.push_back(std::move(program));
  }
  // Views are sorted by name; programs follow them to their new places.
  std::vector<ViewId> order(content.views.size());
  for (ViewId i = 0; i < order.size(); ++i) order[i] = i;
  std::sort(order.begin(), order.end(),
            [&](ViewId a, ViewId b) { return content.views[a].name < content.views[b].name; });
  std::vector<ViewId> new_place(order.size());
  std::vector<MapView> sorted;
  for (ViewId i = 0; i < order.size(); ++i) {
    new_place[order[i]] = i;
    sorted.push_back(std::move(content.views[order[i]]));
  }
  content.views = std::move(sorted);
  for (auto& program : content.programs) program.view = new_place[program.view];

  content.objects.resize(objects_.size());
  std::map<std::string, ObjectId> paths;
  for (ObjectId id = 0; id < objects_.size(); ++id) {
    content.objects[rank[id]] = objects_[id];
    for (const auto& path : objects_.paths(id)) paths.emplace(path, rank[id]);
    if (objects_[id].imports_dladdr && options_.plugin_folders.empty())
      result_.notes.push_back(escape_for_terminal(objects_[id].path) +
                              ": imports dladdr: may look for files beside itself (--plugins)");
  }
  content.paths.assign(paths.begin(), paths.end());
  char host[256] = {};
  if (::gethostname(host, sizeof(host) - 1) == 0) content.host = host;
  return std::move(result_);
}

}  // namespace

Result<BuildResult> build_map(World& world, const std::vector<AppRoot>& roots,
                              const BuildOptions& options) {
  MapBuilder builder(world, options);
  if (roots.size() > 1) {
    std::vector<std::string> paths;
    for (const auto& root : roots) paths.push_back(root.path);
    world.prefetch(paths);
  }
  for (std::size_t i = 0; i < roots.size(); ++i) {
    if (auto added = builder.add_root(roots[i].path, roots[i].kind); !added) {
      if (roots[i].required) return fail(std::move(added.error()));
      builder.leave_out(roots[i].path, std::move(added.error()));
    }
    if (options.progress) options.progress(i + 1, roots.size());
  }
  return std::move(builder).finish();
}

}  // namespace heddle
