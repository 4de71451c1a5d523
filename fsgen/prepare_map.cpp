// SPDX-License-Identifier: MIT
#include "fsgen/prepare_map.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <optional>
#include <utility>

#include "base/coder.hpp"
#include "base/elf_file.hpp"
#include "base/escape.hpp"
#include "base/fd.hpp"
#include "base/find_program.hpp"
#include "base/launch/rank.hpp"
#include "base/log.hpp"
#include "base/open_regular.hpp"
#include "base/try.hpp"
#include "fsgen/guided_environment.hpp"
#include "fsgen/slow_files.hpp"
#include "resolver/build/app_inputs.hpp"
#include "resolver/build/map_builder.hpp"
#include "resolver/build/resolver_session.hpp"
#include "resolver/map/index_writer.hpp"
#include "resolver/map/map_reader.hpp"
#include "resolver/map/tree_index.hpp"

namespace heddle {
namespace {

/// For the daemon, whose working directory is another.
Result<std::string> absolute_path(const std::string& path) {
  std::error_code error;
  auto whole = std::filesystem::absolute(path, error).string();
  if (error) return fail_errno(path, "cannot use", error.value());
  return whole;
}

/// Adds the program at `path`, or its script's interpreters, if it can be resolved.
void add_program(AppInputs& inputs, const std::string& path) {
  AppInputs named;
  if (!add_app(named, path)) return;
  for (auto& root : named.roots) {
    const bool known = std::any_of(inputs.roots.begin(), inputs.roots.end(),
                                   [&](const AppRoot& r) { return r.path == root.path; });
    if (known || root.kind != RootIs::program) continue;
    root.required = false;
    inputs.roots.push_back(std::move(root));
  }
}

/// Adds the programs that APP's arguments name.
void add_argument_programs(AppInputs& inputs, const std::vector<std::string>& command) {
  constexpr std::size_t kMostWords = 64;  // of a launcher; not a list of ten thousand files
  for (std::size_t i = 1; i < std::min(command.size(), kMostWords); ++i) {
    if (command[i].empty() || command[i][0] == '-') continue;
    auto found = find_program(command[i]);
    if (found) add_program(inputs, *found);
  }
}

/// Whether the ELF file `path` is of this program's class and machine, which are the audit
/// library's. True for a file that cannot be read: the resolver reports it.
bool takes_audit_library(const std::string& path) {
  const auto kind = [](const std::string& file) -> std::optional<std::pair<int, int>> {
    const auto fd = open_regular(file);
    if (!fd) return std::nullopt;
    const FileBytes bytes = file_bytes(fd->get());
    const auto elf = ElfFile::read(bytes);
    if (!elf) return std::nullopt;
    return std::pair<int, int>(elf->header.e_ident[EI_CLASS], elf->header.e_machine);
  };
  const auto theirs = kind(path);
  const auto ours = kind("/proc/self/exe");
  return !theirs || !ours || theirs == ours;
}

/// `app`: APP, or its script's interpreter; "" when there is none to guide.
void find_app(PreparedMap& map, const std::string& app) {
  if (app.empty()) {
    if (map.unguided_reason.empty()) map.unguided_reason = "not an ELF program";
    return;
  }
  const auto& programs = map.content.programs;
  const auto found = std::find_if(programs.begin(), programs.end(),
                                  [&](const MapProgram& p) { return p.path == app; });
  if (found != programs.end())
    map.program = static_cast<std::size_t>(found - programs.begin());
  else if (map.unguided_reason.empty())
    map.unguided_reason = "not in the map";
}

/// Equal for runs that resolve alike as long as no file changes: the programs and what ld.so reads
/// of the environment. The host's name is in it because stamps are a node's.
std::string cache_key(const GenOptions& options, const AppInputs& inputs,
                      const SearchOptions& search) {
  const auto cpu = read_cpu_levels(search.hwcaps_tunable);
  std::error_code error;
  const auto relative = search.ld_library_path + search.ld_preload;
  std::vector<std::string> words = {HEDDLE_VERSION,
                                    host_name(),
                                    search.ld_library_path,
                                    search.ld_preload,
                                    search.hwcaps_tunable,
                                    std::to_string(cpu.isa_levels),
                                    std::to_string(cpu.hwcaps_levels),
                                    relative.empty() ? "" : std::filesystem::current_path(error)};
  for (const auto* list : {&options.slow, &options.fast}) {
    words.emplace_back("");
    words.insert(words.end(), list->begin(), list->end());
  }
  words.push_back(options.serve);
  // What trees depend on, but for the files: RunCache::find() has these checked.
  for (const auto* list : {&options.trees, &options.tree_excludes}) {
    words.emplace_back("");
    words.insert(words.end(), list->begin(), list->end());
  }
  words.push_back(options.python);
  for (const char* name : {"PYTHONPATH", "PYTHONHOME", "PYTHONUSERBASE", "HOME"})
    words.push_back(Environment().get(name).value_or(""));
  for (const auto& root : inputs.roots) words.push_back(root.path);
  Encoder coder;
  coder(words);
  return hash_bytes(coder.take()).hex();
}

/// Judges where the libraries lie: whether a mount pays, and what it serves.
void judge_files(PreparedMap& map, const GenOptions& options) {
  SlowFiles files(options.slow, options.fast);
  bool remote = true;
  map.mount = false;
  std::map<std::string, std::string> told;  // a line for each verdict
  for (const auto& program : map.content.programs)
    for (const auto& library : program.libraries) {
      const auto directory = directory_of(map.content.objects[library.object].path);
      const auto& speed = files.speed_of(directory.empty() ? "/" : directory);
      told.try_emplace(fmt::format("{}: {}", speed.slow ? "slow" : "fast", speed.why), directory);
      map.mount |= speed.slow;
      remote &= !speed.slow || speed.remote_type;
    }
  for (const auto& [verdict, directory] : told) map.speeds.push_back(directory + ": " + verdict);
  map.slow_libraries = map.mount;
  map.mount |= !map.content.trees.empty();
  if (map.serve.empty()) map.serve = map.mount && remote ? "remote" : "all";
}

/// Every name leads to its original file. Of the node and the moment that the map was made at.
Result<std::string> make_direct_index(const MapContent& content) {
  IndexInput input{content, "", {}, std::vector<bool>(content.objects.size(), true)};
  for (const auto& program : content.programs)
    input.programs.emplace_back(content.objects[program.object].stamp);
  for (const auto& object : content.objects) input.objects.emplace_back(object.stamp);
  return make_index(input);
}

/// Whether something in the trees may change without a change of its times.
bool is_young(const std::vector<MapTree>& trees, std::int64_t started_ns) {
  for (const auto& tree : trees) {
    const auto index = TreeIndex::of(tree.index);
    for (TreeNodeId id = 0; index && id < index->size(); ++id)
      if (RunCache::is_young(index->node(id).ctime_ns, started_ns)) return true;
  }
  return false;
}

/// With a mount, map.path then is the cache's.
void store(PreparedMap& map, const RunCache& cache, const std::string& app, const OsWorld& world,
           std::int64_t started_ns, const LearnedRun& learned, const AppTrees& trees) {
  auto seen = world.seen();
  if (!seen || is_young(map.content.trees, started_ns)) return;
  // What the answer that there is none depends on.
  if (trees.trees.empty())
    for (const auto& directory : trees.found)
      seen->paths.push_back({directory, RunCache::stamp_of(directory), true});
  CachedRun run{map.content.programs, app,     map.mount, map.slow_libraries,
                !trees.trees.empty(), "",      map.serve, map.speeds,
                map.tree_notes,       learned, map.index};
  for (auto& program : run.programs) program.guided.clear();
  const auto path = cache.path(map.key + ".map");
  if (map.mount) {
    if (!write_map(map.content, path)) return;
    const auto reader = MapReader::open(path);
    if (!reader) return;
    run.map_id = reader->id().hex();
  }
  const bool stored = cache.store(map.key, run, std::move(*seen), started_ns);
  if (stored && map.mount) map.path = path;
}

Result<void> resolve_into(PreparedMap& map, const GenOptions& options, AppInputs& inputs,
                          const SearchOptions& search, const std::string& app,
                          const RunCache* cache, const LearnedRun& learned, std::int64_t started_ns,
                          AppTrees trees) {
  for (const auto& [program, libraries] : learned) add_program(inputs, program);
  for (auto& root : inputs.roots) root.required = false;
  ResolverSession session;
  BuildOptions build;
  build.search = search;
  build.plugin_directories = options.plugin_directories;
  build.learned = learned;
  build.aliases = !options.may_go_direct() || !options.out.empty();
  auto built = TRY(build_map(session.world, inputs.roots, build));
  const auto app_left_out = [&] { return std::ranges::find(built.left_out, app, &LeftOut::path); };
  if (cache && app_left_out() != built.left_out.end() && build.learned.erase(app) > 0)
    built = TRY(build_map(session.world, inputs.roots, build));  // what it loaded has changed
  map.content = std::move(built.content);
  map.content.trees = trees.trees;
  map.tree_notes = trees.notes;
  if (options.may_go_direct()) {
    judge_files(map, options);
    if (map.mount && !build.aliases) {
      build.aliases = true;
      built = TRY(build_map(session.world, inputs.roots, build));
      map.content = std::move(built.content);
      map.content.trees = trees.trees;
    }
    map.index = TRY(make_direct_index(map.content));
  }
  for (const auto& missing : built.missing)
    if (missing.program == app || !cache)
      warn(escape_for_terminal(missing.name) + ", which " + escape_for_terminal(missing.needed_by) +
           " needs: " + missing.reason);
  if (const auto left_out = app_left_out(); left_out != built.left_out.end())
    map.unguided_reason = left_out->reason.message();
  const bool is_whole =
      map.unguided_reason.empty() &&
      std::ranges::find(built.missing, app, &MissingReport::program) == built.missing.end();
  const auto path = map.path;
  if (cache && is_whole) store(map, *cache, app, session.world, started_ns, learned, trees);
  // Direct needs no map, the cache has it, or the next run alone does.
  if ((!map.mount && options.out.empty()) || map.path != path || path.empty()) return {};
  return write_map(map.content, path);
}

/// Fills in the answer of an earlier run. False: there is none that still holds; its map.learned
/// does. `trees`, if they had to be read for that.
bool take_cached(PreparedMap& map, const GenOptions& options, const RunCache& cache,
                 std::optional<AppTrees>& trees) {
  bool valid = false;
  std::optional<MapContent> mapped;
  const auto holds = [&](const CachedRun& run) {
    if (!run.mount) return true;
    const auto reader = MapReader::open(cache.path(map.key + ".map"));
    if (!reader || reader->id().hex() != run.map_id) return false;
    auto read = reader->read_all();
    if (!read) return false;
    mapped = std::move(*read);
    return true;
  };
  const auto trees_hold = [&](const CachedRun& run) {
    if (!run.trees) return true;
    if (!mapped && !holds(run)) return false;
    if (!trees) trees = read_app_trees(options, &mapped->trees);
    return std::ranges::equal(trees->trees, mapped->trees, [](const MapTree& a, const MapTree& b) {
      return a.path == b.path && a.index == b.index;
    });
  };
  auto run = cache.find(map.key, valid, trees_hold);
  if (!run) return false;
  map.learned = run->learned;
  if (!valid || (!mapped && !holds(*run))) return false;
  MapContent content;
  if (mapped) {
    content = std::move(*mapped);
    map.path = cache.path(map.key + ".map");
  } else {
    content.programs = std::move(run->programs);
  }
  map.content = std::move(content);
  map.mount = run->mount;
  map.slow_libraries = run->slow_libraries;
  map.tree_notes = std::move(run->tree_notes);
  map.serve = run->serve;
  map.speeds = std::move(run->speeds);
  if (cache.is_local())
    map.index_path = cache.path(map.key);
  else
    map.index = std::move(run->index);
  map.cached = true;
  return true;
}

}  // namespace

Result<PreparedMap> prepare_map(const GenOptions& options, const std::string& app_path,
                                const std::string& default_path, const RunCache* cache,
                                const LearnedRun& learned,
                                const std::optional<AppTrees>& known_trees) {
  const auto begin = std::chrono::steady_clock::now();
  PreparedMap map;
  map.serve = options.serve;
  AppInputs inputs;
  if (auto added = add_app(inputs, app_path); !added) map.unguided_reason = added.error().message();
  if (inputs.roots.empty() && !inputs.notes.empty()) map.unguided_reason = "static program";
  if (!inputs.roots.empty() && inputs.roots[0].kind == RootIs::library)
    map.unguided_reason = "a library, not a program";
  // Its ld.so would print on APP's stderr that it cannot load the audit library.
  if (options.loader == LoaderKind::audit && !inputs.roots.empty() &&
      !takes_audit_library(inputs.roots[0].path)) {
    map.unguided_reason = "a program of another machine or class, such as 32-bit";
    inputs.roots.clear();
  }
  // resolve_into() appends the programs of its arguments.
  const std::string app = inputs.roots.empty() ? "" : inputs.roots[0].path;
  if (!options.map.empty()) {
    map.path = TRY(absolute_path(options.map));
    const auto file = open_regular(map.path);
    if (!file) return fail(map_open_error(map.path, file.error().code()));
    struct stat status {};
    if (::fstat(file->get(), &status) != 0) return fail_errno(map.path, "cannot stat");
    TRY(check_map_owner(status, map.path));
    TRY(check_map_path(map.path));
    auto reader = TRY(MapReader::open(file->get(), map.path));
    map.content = TRY(reader.read_all());
    // The files need not be on this node.
    if (reader.bundle())
      map.serve = "all";
    else if (options.may_go_direct())
      judge_files(map, options);
  } else {
    const auto& path = options.out.empty() ? default_path : options.out;
    if (!path.empty()) map.path = TRY(absolute_path(path));
    // A directory that cannot be listed would exclude each program.
    for (const auto& directory : options.plugin_directories) TRY(list_plugin_directory(directory));
    const auto search = search_options_from_environment();
    const auto started_ns = realtime_ns();
    auto trees = known_trees;
    add_argument_programs(inputs, options.command);
    std::optional<Fd> lock;
    if (cache && !app.empty()) {
      map.key = cache_key(options, inputs, search);
      if (learned.empty() && !take_cached(map, options, *cache, trees)) {
        // Trees of 200,000 files take seconds.
        lock = cache->lock(map.key, std::chrono::seconds(30));
        (void)(lock && take_cached(map, options, *cache, trees));
      }
    }
    if (!map.cached) {
      if (!trees) trees = options.may_have_trees() ? read_app_trees(options, nullptr) : AppTrees();
      TRY(resolve_into(map, options, inputs, search, app, map.key.empty() ? nullptr : cache,
                       learned.empty() ? map.learned : learned, started_ns, std::move(*trees)));
    }
  }
  find_app(map, app);
  map.resolve_ns = static_cast<std::uint64_t>(
      std::chrono::nanoseconds(std::chrono::steady_clock::now() - begin).count());
  return map;
}

}  // namespace heddle
