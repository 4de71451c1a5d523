// SPDX-License-Identifier: MIT
#include "fsgen/prepare_map.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
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
#include "base/file_stamp.hpp"
#include "base/find_program.hpp"
#include "base/launch/rank.hpp"
#include "base/log.hpp"
#include "base/open_regular.hpp"
#include "base/paths.hpp"
#include "base/try.hpp"
#include "fsgen/app_trees.hpp"
#include "fsgen/guided_environment.hpp"
#include "fsgen/slow_files.hpp"
#include "resolver/build/app_inputs.hpp"
#include "resolver/build/map_builder.hpp"
#include "resolver/build/resolver_session.hpp"
#include "resolver/map/index_writer.hpp"
#include "resolver/map/library_path.hpp"
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

bool has_relative_element(std::string_view list) {
  bool found = false;
  library_path::each_element(list.data(), list.size(), [&](const library_path::Element& element) {
    found = found || element.is_relative();
  });
  return found;
}

/// The working directory if what ld.so reads of the environment depends on it; else empty.
std::string relevant_directory(const SearchOptions& search) {
  const auto is_relative = [](const std::string& name) {
    return name.find('/', 1) != name.npos && name[0] != '/';
  };
  std::error_code error;
  return has_relative_element(search.ld_library_path) ||
                 std::ranges::any_of(split_preload_variable(search.ld_preload), is_relative)
             ? std::filesystem::current_path(error).string()
             : "";
}

/// Equal for runs that resolve alike as long as no file changes: the programs and what ld.so reads
/// of the environment. The host's name is in it because stamps are a node's.
std::string cache_key(const GenOptions& options, const AppInputs& inputs,
                      const SearchOptions& search, const TreeCandidates& trees) {
  const auto cpu = read_cpu_levels(search.hwcaps_tunable);
  std::vector<std::string> words = {HEDDLE_VERSION,
                                    host_name(),
                                    search.ld_library_path,
                                    search.ld_preload,
                                    search.hwcaps_tunable,
                                    std::to_string(cpu.isa_levels),
                                    std::to_string(cpu.hwcaps_levels),
                                    relevant_directory(search)};
  for (const auto* list : {&options.slow, &options.fast, &options.tree_excludes}) {
    words.emplace_back("");
    words.insert(words.end(), list->begin(), list->end());
  }
  words.push_back(options.serve);
  // What trees depend on, but for the files: RunCache::find() has these checked.
  words.emplace_back(options.may_have_trees() ? "trees" : "");
  words.push_back(trees.identity());
  words.push_back(Environment().get("HOME").value_or(""));
  for (const auto& root : inputs.roots) words.push_back(root.path);
  Encoder coder;
  coder(words);
  return hash_bytes(coder.take()).hex();
}

const TreeCandidates& candidates_of(PreparedMap& map, const GenOptions& options) {
  if (!map.candidates) map.candidates = find_tree_candidates(options);
  return *map.candidates;
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

/// A tree in which something may change without a change of its times; null: there is none.
const MapTree* young_one(const std::vector<MapTree>& trees, std::int64_t started_ns) {
  for (const auto& tree : trees) {
    const auto index = TreeIndex::of(tree.index);
    for (TreeNodeId id = 0; index && id < index->size(); ++id)
      if (RunCache::is_young(index->node(id).ctime_ns, started_ns)) return &tree;
  }
  return nullptr;
}

/// The map at `path`.
struct OpenMap {
  std::string path;
  Fd file;
  std::string id;
  MapContent content;
};

Result<OpenMap> open_map(const std::string& path) {
  OpenMap out;
  out.path = path;
  out.file = TRY(open_regular(path));
  const auto reader = TRY(MapReader::open(out.file.get(), path));
  out.id = reader.id().hex();
  out.content = TRY(reader.read_all());
  return out;
}

void use(PreparedMap& map, OpenMap from) {
  map.path = std::move(from.path);
  map.file = std::move(from.file);
  map.id = std::move(from.id);
  map.content = std::move(from.content);
}

/// Writes the map, and opens what is then at `path`: another run may have published its own.
Result<OpenMap> publish(const MapContent& content, const std::string& path) {
  TRY(write_map(content, path));
  return open_map(path);
}

/// With a mount, the map then is the cache's.
Result<void> store(PreparedMap& map, const RunCache& cache, const std::string& app,
                   const SearchOptions& search, const OsWorld& world, std::int64_t started_ns,
                   const LearnedRun& learned) {
  // The auditor compares LD_LIBRARY_PATH from where a process is, but no RPATH.
  const auto relative = std::ranges::find_if(map.content.objects, [](const MapObject& object) {
    return has_relative_element(object.rpath) || has_relative_element(object.runpath);
  });
  auto seen = world.seen();
  if (!seen && relative != map.content.objects.end())
    return fail(relative->path, "its RPATH or RUNPATH has a relative or empty element");
  if (!seen) seen = world.seen(relevant_directory(search));
  if (!seen) return fail("", "it depends on a path that cannot be read");
  const auto& trees = map.content.trees;
  if (const auto* tree = young_one(trees, started_ns))
    return fail(tree->path, "something in it changed less than 2 s before the run");
  // What the answer that there is none depends on.
  if (trees.empty() && map.candidates)
    for (const auto& path : map.candidates->possible())
      seen->paths.push_back({path, RunCache::stamp_of(path), true});
  CachedRun run{map.content.programs, app,     map.mount,       map.slow_libraries,
                !trees.empty(),       "",      map.serve,       map.speeds,
                map.tree_notes,       learned, map.late_probes, map.index};
  for (auto& program : run.programs) program.guided.clear();
  std::optional<OpenMap> published;
  if (map.mount) {
    published = TRY(publish(map.content, cache.path(map.key + ".map")));
    run.map_id = published->id;
  }
  TRY(cache.store(map.key, run, std::move(*seen), started_ns));
  if (published) use(map, std::move(*published));
  return {};
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
  map.late_probes = built.late_probes;
  map.content.trees = std::move(trees.trees);
  map.tree_notes = std::move(trees.notes);
  if (options.may_go_direct()) {
    judge_files(map, options);
    if (map.mount && !build.aliases) {
      build.aliases = true;
      built = TRY(build_map(session.world, inputs.roots, build));
      built.content.trees = std::move(map.content.trees);
      map.content = std::move(built.content);
    }
    map.index = TRY(make_direct_index(map.content));
  }
  for (const auto& missing : built.missing)
    if (missing.program == app || !options.out.empty())
      warn(escape_for_terminal(missing.name) + ", which " + escape_for_terminal(missing.needed_by) +
           " needs: " + missing.reason);
  if (const auto left_out = app_left_out(); left_out != built.left_out.end())
    map.unguided_reason = left_out->reason.message();
  const bool is_whole =
      map.unguided_reason.empty() &&
      std::ranges::find(built.missing, app, &MissingReport::program) == built.missing.end();
  const auto path = map.path;
  if (cache) {
    if (!is_whole)
      map.not_cached = "a library is missing";
    else if (auto done = store(map, *cache, app, search, session.world, started_ns, learned); !done)
      map.not_cached = done.error().message();
  }
  // Direct needs no map, the cache has it, or the next run alone does.
  if ((!map.mount && options.out.empty()) || map.path != path || path.empty()) return {};
  use(map, TRY(publish(map.content, path)));
  return {};
}

/// Fills in the answer of an earlier run. False: there is none that still holds; its map.learned
/// does. `trees`, if they had to be read for that. Unless `needs_trees` they are left out where the
/// kernel knows their names.
bool take_cached(PreparedMap& map, const GenOptions& options, const RunCache& cache,
                 std::optional<AppTrees>& trees, bool needs_trees) {
  bool valid = false;
  std::optional<OpenMap> mapped;
  const auto holds = [&](const CachedRun& run) {
    if (!run.mount) return true;
    auto opened = open_map(cache.path(map.key + ".map"));
    if (!opened || opened->id != run.map_id) return false;
    mapped = std::move(*opened);
    return true;
  };
  const auto trees_hold = [&](const CachedRun& run) {
    if (!run.trees) return true;
    if (!mapped && !holds(run)) return false;
    const auto& earlier = mapped->content.trees;
    map.known_names = !needs_trees && !run.slow_libraries && names_are_known(earlier);
    if (map.known_names) return true;
    if (!trees) trees = read_app_trees(options, candidates_of(map, options), &earlier);
    return std::ranges::equal(trees->trees, earlier, [](const MapTree& a, const MapTree& b) {
      return a.path == b.path && a.index == b.index;
    });
  };
  auto run = cache.find(map.key, valid, trees_hold);
  if (!run) return false;
  map.learned = run->learned;
  if (!valid || (!mapped && !holds(*run))) return false;
  if (map.known_names) {
    run->mount = false;
    run->tree_notes.emplace_back("no trees: the kernel knows their names from a run just before");
    mapped.reset();
  }
  if (mapped) {
    use(map, std::move(*mapped));
  } else {
    map.content = {};
    map.content.programs = std::move(run->programs);
  }
  map.mount = run->mount;
  map.slow_libraries = run->slow_libraries;
  map.late_probes = run->late_probes;
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

/// Resolving the programs of a test suite would take longer than they save.
constexpr std::size_t kMostPrograms = 256;
constexpr std::size_t kMostLibraries = 4096;  // of one program

LearnedRun merged(LearnedRun all, const LearnedRun& more) {
  for (const auto& [program, found] : more) {
    if (all.size() >= kMostPrograms && !all.contains(program)) continue;
    auto& known = all[program];
    for (const auto& library : found)
      if (known.size() < kMostLibraries) known.insert(library);
  }
  return all;
}

/// Without programs and libraries that are gone or too young for the cache: temporary ones.
LearnedRun settled(const LearnedRun& run) {
  LearnedRun out;
  const auto now = now_ns();
  for (const auto& [program, libraries] : run) {
    if (!is_settled(program, now)) continue;
    auto& kept = out[program];
    for (const auto& library : libraries)
      if (is_settled(library.path, now)) kept.insert(library);
  }
  return out;
}

/// Whether `found` has a program or library that is neither in the map nor learned before.
bool has_new(const LearnedRun& found, const LearnedRun& known, const MapContent& content) {
  return std::ranges::any_of(found, [&](const auto& entry) {
    const auto& [path, libraries] = entry;
    const auto before = known.find(path);
    if (before == known.end())
      return !libraries.empty() ||
             std::ranges::find(content.programs, path, &MapProgram::path) == content.programs.end();
    return !std::ranges::includes(before->second, libraries);
  });
}

/// Adds what a rank has logged, if it has ended, to the entry `map.key`.
void take_learn_log(PreparedMap map, const GenOptions& options, const std::string& app_path,
                    const RunCache& cache) {
  const auto path = cache.learn_log(map.key);
  const Fd log(::open(path.c_str(), O_RDWR | O_NOFOLLOW | O_CLOEXEC));
  if (!log || ::flock(log.get(), LOCK_EX | LOCK_NB) != 0) return;
  const auto run = read_learned_run("/proc/self/fd/" + std::to_string(log.get()));
  (void)::unlink(path.c_str());
  const auto known = cache.peek(map.key);
  if (!run || !known) return;
  map.content.programs = known->programs;
  std::optional<AppTrees> trees;
  if (has_new(settled(*run), known->learned, map.content) &&
      take_cached(map, options, cache, trees, true))
    learn_for_next_run(options, app_path, map, *run, cache);
}

}  // namespace

Result<void> check_cpu(const PreparedMap& map, bool tuned) {
  constexpr std::string_view kLevel = "/glibc-hwcaps/x86-64-v";
  const auto tunable = tuned ? search_options_from_environment().hwcaps_tunable : "";
  const auto cpu = read_cpu_levels(tunable);
  for (const auto& library : map.app()->libraries) {
    const auto& path = map.content.objects[library.object].path;
    const auto at = path.rfind(kLevel);
    if (at == path.npos) continue;
    const auto level = static_cast<unsigned>(path[at + kLevel.size()] - '1');
    if (level < 32 && (cpu.hwcaps_levels >> level & 1U) == 0)
      return fail(Error(map.path, "is for another CPU", path, "build the map on this node")
                      .because(Cause::unfit));
  }
  return {};
}

Result<RunCache> cache_for(const GenOptions& options) {
  if (options.may_be_cached()) return RunCache::open();
  return fail("", "an option asks for what the cache cannot have (CACHE in fs-gen(1))");
}

std::string command_key(const GenOptions& options, const std::string& app_path) {
  std::error_code error;
  std::vector<std::string> words = options.command;
  words.push_back(std::filesystem::absolute(app_path, error).string());
  words.push_back(std::filesystem::current_path(error).string());
  for (const auto* list : {&options.slow, &options.fast, &options.trees, &options.tree_excludes}) {
    words.emplace_back("");
    words.insert(words.end(), list->begin(), list->end());
  }
  words.insert(words.end(),
               {options.python, options.serve, options.may_have_trees() ? "" : "direct"});
  for (const char* name :
       {"PATH", "LD_LIBRARY_PATH", "LD_PRELOAD", "LD_AUDIT", "GLIBC_TUNABLES", "PYTHONPATH",
        "PYTHONHOME", "PYTHONUSERBASE", "PYTHONNOUSERSITE", "PYENV_VERSION", "HOME"})
    words.push_back(Environment().get(name).value_or(""));
  Encoder coder;
  coder(words);
  return hash_bytes(coder.take()).hex();
}

void learn_for_next_run(const GenOptions& options, const std::string& app_path,
                        const PreparedMap& map, const LearnedRun& run, const RunCache& cache) {
  const auto found = settled(run);
  if (!has_new(found, map.learned, map.content)) return;
  // Of a job's ranks one does it. No entry: a file is too young.
  const auto lock = cache.lock(map.key, std::chrono::milliseconds(0));
  bool valid = false;
  const auto now = lock ? cache.find(map.key, valid) : std::nullopt;
  if (!valid || !has_new(found, now->learned, map.content)) return;
  const auto learned = merged(now->learned, found);
  if (learned != now->learned) (void)prepare_map(options, app_path, "", &cache, learned, &map);
}

Result<PreparedMap> prepare_map(const GenOptions& options, const std::string& app_path,
                                const std::string& default_path, const RunCache* cache,
                                const LearnedRun& learned, const PreparedMap* before) {
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
  std::string app = inputs.roots.empty() ? "" : inputs.roots[0].path;
  if (!options.map.empty()) {
    map.path = TRY(absolute_path(options.map));
    auto file = open_regular(map.path);
    if (!file) return fail(map_open_error(map.path, file.error().code()));
    struct stat status {};
    if (::fstat(file->get(), &status) != 0) return fail_errno(map.path, "cannot stat");
    TRY(check_map_owner(status, map.path));
    TRY(check_map_path(map.path));
    auto reader = TRY(MapReader::open(file->get(), map.path));
    map.content = TRY(reader.read_all());
    map.id = reader.id().hex();
    map.file = std::move(*file);
    if (::access(app_path.c_str(), F_OK) != 0) {  // in a tree that is not on this node
      map.unguided_reason.clear();
      const auto trees = TRY(reader.trees());
      app = executable_in(trees, app_path).value_or("");
    }
    // The files need not be on this node.
    map.is_bundle = reader.bundle() != nullptr;
    if (options.first_rank && !options.fallback.empty() && !map.is_bundle)
      warn(Error(options.fallback, "is not used", "the map is no bundle"));
    if (map.is_bundle)
      map.serve = "all";
    else if (options.may_go_direct())
      judge_files(map, options);
  } else {
    const auto& path = options.out.empty() ? default_path : options.out;
    if (!path.empty()) map.path = TRY(absolute_path(path));
    // A directory that cannot be listed would exclude each program.
    for (const auto& directory : options.plugin_directories) TRY(list_plugin_directory(directory));
    const auto search = search_options_from_environment();
    const auto started_ns = now_ns();
    std::optional<AppTrees> trees;
    if (before) trees = AppTrees{before->content.trees, before->tree_notes};
    if (before) map.candidates = before->candidates;
    add_argument_programs(inputs, options.command);
    std::optional<Fd> lock;
    if (cache && !app.empty()) {
      const auto key = [&] {
        auto made = cache_key(options, inputs, search, candidates_of(map, options));
        // Here, where one rank of a node does it and the others wait.
        PreparedMap known;
        known.key = made;
        known.serve = options.serve;
        known.candidates = map.candidates;
        if (learned.empty()) take_learn_log(std::move(known), options, app_path, *cache);
        return made;
      };
      map.key = before ? before->key : RunCache::once_a_job(command_key(options, app_path), 0, key);
      // What --slow and --tree name has a mount in any case, and so have the ranks of a job.
      const bool needs_trees =
          !options.slow.empty() || !options.trees.empty() || rank_from_environment();
      if (learned.empty() && !take_cached(map, options, *cache, trees, needs_trees)) {
        // Trees of 200,000 files take seconds.
        lock = cache->lock(map.key, std::chrono::seconds(30));
        (void)(lock && take_cached(map, options, *cache, trees, needs_trees));
      }
    }
    if (!map.cached) {
      if (!trees) trees = read_app_trees(options, candidates_of(map, options), nullptr);
      TRY(resolve_into(map, options, inputs, search, app, map.key.empty() ? nullptr : cache,
                       learned.empty() ? map.learned : learned, started_ns, std::move(*trees)));
    }
  }
  find_app(map, app);
  if (!options.map.empty() && map.app())
    TRY(check_cpu(map, false));  // the auditor minds GLIBC_TUNABLES
  map.resolve_ns = static_cast<std::uint64_t>(
      std::chrono::nanoseconds(std::chrono::steady_clock::now() - begin).count());
  return map;
}

}  // namespace heddle
