// SPDX-License-Identifier: MIT
// The program fs-gen. Its exit status is APP's, 126 or 127 as a shell gives them, or ExitCode.

#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <new>
#include <nlohmann/json.hpp>

#include "base/escape.hpp"
#include "base/exit_code.hpp"
#include "base/fd.hpp"
#include "base/find_program.hpp"
#include "base/launch/app_process.hpp"
#include "base/log.hpp"
#include "base/output_file.hpp"
#include "base/paths.hpp"
#include "base/run_main.hpp"
#include "base/temp_dir.hpp"
#include "fsgen/app_trees.hpp"
#include "fsgen/doctor.hpp"
#include "fsgen/gen_options.hpp"
#include "fsgen/guided_environment.hpp"
#include "fsgen/guided_run.hpp"
#include "fsgen/prepare_map.hpp"
#include "fsgen/slow_files.hpp"
#include "resolver/elf/cached_facts.hpp"

namespace heddle {
namespace {

/// Discards APP's standard output during its lifetime.
class SilentStdout {
 public:
  SilentStdout() : saved_(::fcntl(STDOUT_FILENO, F_DUPFD_CLOEXEC, 3)) {
    if (auto null = open_file("/dev/null", O_WRONLY)) ::dup2(null->get(), STDOUT_FILENO);
  }
  SilentStdout(const SilentStdout&) = delete;
  SilentStdout& operator=(const SilentStdout&) = delete;
  ~SilentStdout() {
    if (saved_) ::dup2(saved_.get(), STDOUT_FILENO);
  }

 private:
  Fd saved_;
};

double median_ms(std::vector<std::uint64_t> ns) {
  std::sort(ns.begin(), ns.end());
  const std::size_t middle = ns.size() / 2;
  const auto value = ns.size() % 2 ? static_cast<double>(ns[middle])
                                   : static_cast<double>(ns[middle - 1] + ns[middle]) / 2;
  return value / 1e6;
}

std::string verdict(double ratio) {
  if (ratio > 0.95 && ratio < 1.05) return "as fast";
  return ratio > 1 ? fmt::format("{:.1f} times as fast", ratio)
                   : fmt::format("{:.1f} times slower", 1 / ratio);
}

/// An APP that cannot run, or that a signal ended (Ctrl-C), ends the comparison.
std::optional<AppEnd> reason_to_stop(const GenOptions& options, const RunReport& done) {
  if (done.exec_error != 0) return AppEnd{report_exec_failure(options.command[0], done.exec_error)};
  if (done.end.signal == 0) return std::nullopt;
  report(Error(options.command[0], "not compared", "a signal ended it"));
  return done.end;
}

/// `--compare N`: N unguided and N guided runs, alternating, output discarded; prints both medians
/// and their ratio to stderr, and to `json` if not null. Guided runs share no mount, so that none
/// is a warm start. Result: the first failed run's end, else success.
AppEnd compare(const GenOptions& options, const std::string& app_path, const PreparedMap& map,
               OutputFile* json) {
  leave_standing_mount();
  std::vector<std::uint64_t> plain;
  std::vector<std::uint64_t> guided;
  std::vector<std::uint64_t> mounting;
  unsigned guided_runs = 0, failed_without = 0, failed_with = 0;
  bool is_mounted = false;
  AppEnd end;
  {
    const SilentStdout silence;
    for (unsigned i = 0; i < options.compare_runs; ++i) {
      const auto bare = value_or_throw(run_plain(options, app_path, ""));
      if (const auto stop = reason_to_stop(options, bare)) return *stop;
      auto work = value_or_throw(make_work_dir());
      const auto ours = value_or_throw(run_best(options, app_path, map, std::move(work)));
      if (const auto stop = reason_to_stop(options, ours)) return *stop;
      failed_without += bare.end.status != 0;
      failed_with += ours.end.status != 0;
      guided_runs += ours.guided || ours.counters.guided_processes > 0;
      is_mounted = is_mounted || ours.via != "direct";
      mounting.push_back(ours.mount_ns);
      plain.push_back(bare.wall_ns);
      guided.push_back(ours.wall_ns);
      if (end.status == 0) end = bare.end.status != 0 ? bare.end : ours.end;
    }
  }
  const double without = median_ms(plain);
  const double with = median_ms(guided);
  say(fmt::format("{} runs each, medians: {:.1f} ms without heddle, {:.1f} ms with it: {}",
                  options.compare_runs, without, with, verdict(without / with)));
  if (guided_runs > 0)
    say(fmt::format(
        "{}resolving ({:.1f} ms, once) and {} ({:.1f} ms) are not counted",
        is_mounted ? "with it each run has a fresh mount, whose look-ups are counted; " : "",
        static_cast<double>(map.resolve_ns) / 1e6, is_mounted ? "mounting" : "starting",
        median_ms(mounting)));
  else
    say("nothing was guided: " + map.unguided_reason);
  if (failed_without + failed_with > 0)
    warn(
        fmt::format("it failed in {} of {} runs without heddle and in {} with it: first with exit "
                    "status {}",
                    failed_without, options.compare_runs, failed_with, end.status));
  if (json) {
    const SigpipeHeld held;
    const nlohmann::json numbers = {{"runs", options.compare_runs},
                                    {"plain_ns", plain},
                                    {"guided_ns", guided},
                                    {"ratio", without / with},
                                    {"resolve_ns", map.resolve_ns},
                                    {"mount_ns", mounting},
                                    {"failed_plain", failed_without},
                                    {"failed_guided", failed_with}};
    value_or_throw(json->write(numbers.dump(2) + "\n"));
  }
  return end;
}

/// `--learn`: writes the map with all that APP's processes have `learned` to options.out. Result:
/// `end`, APP's; an unwritable map is reported, and is exit_failure if APP succeeded.
AppEnd learn(const GenOptions& options, const std::string& app_path, const LearnedRun& learned,
             const AppEnd& end) {
  const auto map = prepare_map(options, app_path, "", nullptr, learned);
  if (!map) {
    report(map.error());
    return end.status == exit_done ? AppEnd{exit_failure} : end;
  }
  std::size_t names = 0;
  for (const auto& [path, libraries] : learned) names += libraries.size();
  if (!options.quiet)
    say(fmt::format("{}: {} program{}, {} names learned in this run",
                    escape_for_terminal(map->path), map->content.programs.size(),
                    map->content.programs.size() == 1 ? "" : "s", names));
  return end;
}

AppEnd report_run(const GenOptions& options, const RunReport& done, OutputFile* json) {
  if (!options.quiet) say_text("fs-gen: " + to_text(done));
  if (!json) return done.end;
  const SigpipeHeld held;
  if (auto written = json->write(to_json(done).dump(2) + "\n"); !written) {
    report(written.error());
    if (done.end.status == 0) return {exit_failure};
  }
  return done.end;
}

/// The key of a command line that may run without heddle when it gained nothing the last time;
/// empty: options ask for something else.
std::string plain_key(const GenOptions& o, const std::string& app_path) {
  if (!o.may_be_cached() || o.via != Via::best || !o.json_file.empty() || !o.learns) return {};
  return command_key(o, app_path);
}

/// What a plain mark of a Python program depends on: the directories that it imports from, and
/// their file systems.
std::string plain_trees(const TreeCandidates& candidates) {
  auto out = candidates.identity();
  for (const auto& found : candidates.found)
    if (const auto stamp = RunCache::stamp_of(found.path)) out += fmt::format(" {}", stamp->id.dev);
  return out;
}

/// Becomes APP. Returns the exit status when that fails.
AppEnd become_app(const GenOptions& options, const std::string& app_path) {
  const int error = execute({app_path, options.command, Environment().entries()});
  return {report_exec_failure(options.command[0], error)};
}

/// Whether guiding the run's processes saved something, or would have.
bool gains(const GenOptions& options, const PreparedMap& map, const RunReport& done) {
  const auto& counters = done.counters;
  if (map.mount || map.late_probes > 0 || counters.failed() > 0 || counters.left > 0 ||
      done.end.signal != 0 || counters.guided_processes + counters.unguided_processes == 0)
    return true;
  SlowFiles files(options.slow, options.fast);
  for (const auto& [program, found] : done.learned_run)
    for (const auto& library : found)
      if (files.speed_of(directory_of(library.path)).slow) return true;
  return std::ranges::any_of(map.content.programs,
                             [](const MapProgram& program) { return program.probes_unguided > 0; });
}

/// Adds to the cache what the run loaded and executed, or that it had nothing to gain.
void remember(const GenOptions& options, const std::string& app_path, const PreparedMap& map,
              const RunReport& done, const RunCache& cache, const std::string& plain) try {
  if (map.known_names) return;  // the next run may have trees
  if (!gains(options, map, done)) {
    if (!plain.empty() && map.candidates)
      cache.mark_plain(plain, app_path, plain_trees(*map.candidates));
    return;
  }
  if (options.learns) learn_for_next_run(options, app_path, map, done.learned_run, cache);
} catch (const std::bad_alloc&) {  // the next run learns it
}

/// What --explain says of the mount: the ways that a run would try are tried, with another program.
std::string explain_mount(const GenOptions& options, const PreparedMap& map) {
  if (map.known_names) return "mount: no, the kernel knows the names of the trees\n";
  if (options.may_go_direct() && !map.mount) return "mount: no, no file is on a slow file system\n";
  if (map.content.programs.empty() && map.content.trees.empty())
    return "mount: no, there is nothing to guide\n";
  if (options.via == Via::direct) return "mount: no, --via direct\n";
  const bool has_trees = options.may_have_trees() && !places_of(map.content.trees).empty();
  const bool needs_trees = has_trees && !options.map.empty();
  const auto ways = ways_for(options, map);
  std::string tried;
  for (const auto way : ways) {
    if (way == Via::direct || (needs_trees && !tried.empty())) break;
    const auto done = try_way(way);
    tried += "way: " + name_of(way) + ": " + (done ? "works" : done.error().message());
    tried += done || done.error().hint().empty() ? "\n" : "; hint: " + done.error().hint() + "\n";
    if (!done) continue;
    return "mount: yes, " +
           std::string(!map.slow_libraries     ? "for the trees"
                       : map.serve == "remote" ? "serving the remote files"
                                               : "serving all files") +
           (has_trees && way != Via::private_mount ? ", without the trees\n" : "\n") + tried;
  }
  const bool runs = !needs_trees && !ways.empty() && ways.back() == Via::direct;
  return std::string("mount: no, none can be made here: ") +
         (!runs       ? "the run would fail\n"
          : has_trees ? "the original files are opened, without trees\n"
                      : "the original files are opened\n") +
         tried;
}

/// `--explain`. `no_cache`: why there is none.
AppEnd explain(const GenOptions& options, const PreparedMap& map, bool plain,
               const std::string& no_cache) {
  std::string out = escape_for_terminal(options.command[0]) + ": ";
  const MapProgram* app = map.app();
  if (plain)
    out += "runs without heddle: its last run within a day had no failed look-up and no slow file";
  else if (!app)
    out += "runs unguided: " + map.unguided_reason;
  else
    out += fmt::format("{} libraries, {} failed look-ups of ld.so saved at its start",
                       app->libraries.size(), app->probes_unguided);
  out += fmt::format("\nmap: {}, {:.1f} ms\n", map.cached ? "cached and unchanged" : "resolved now",
                     static_cast<double>(map.resolve_ns) / 1e6);
  const auto& not_cached = no_cache.empty() ? map.not_cached : no_cache;
  if (!map.cached && !not_cached.empty()) out += "not cached: " + not_cached + "\n";
  for (const auto& program : map.content.programs)
    if (&program != app) out += "also guided: " + escape_for_terminal(program.path) + "\n";
  for (const auto& line : map.speeds) out += "files: " + escape_for_terminal(line) + "\n";
  for (const auto& tree : places_of(map.content.trees))
    out += fmt::format("tree: {}: {} names{}\n", escape_for_terminal(tree.path), tree.entries,
                       tree.holes.empty() ? "" : fmt::format(", {} left out", tree.holes.size()));
  for (const auto& note : map.tree_notes) out += "trees: " + escape_for_terminal(note) + "\n";
  out += explain_mount(options, map);
  value_or_throw(write_all(STDOUT_FILENO, out, "stdout"));
  return {};
}

/// `fs-gen cache show|clear`.
int manage_cache(const std::vector<std::string>& words) {
  const auto what = words.size() == 1 ? words[0] : "";
  if (what != "show" && what != "clear") {
    report(Error("cache", words.empty() ? "a word is missing" : "unknown words",
                 fmt::format("{}", fmt::join(words, " ")),
                 "fs-gen cache show, or fs-gen cache clear; a program named cache is run by fs-gen "
                 "-- cache"));
    return exit_usage;
  }
  const auto cache = value_or_throw(RunCache::open());
  if (what == "clear")
    cache.clear();
  else
    value_or_throw(write_all(STDOUT_FILENO, cache.show(), "stdout"));
  return exit_done;
}

/// Whether to run the program unguided on failure.
bool can_do_without(const GenOptions& o) {
  return o.via == Via::best && o.loader == LoaderKind::audit && o.map.empty() && o.out.empty() &&
         o.plugin_directories.empty() && o.compare_runs == 0 && !o.learn;
}

/// Under a small `ulimit -v` there may be no room to resolve what the program itself has room for.
Result<PreparedMap> prepare_if_memory_suffices(const GenOptions& options,
                                               const std::string& app_path, const TempDir& work,
                                               const RunCache* cache) try {
  return prepare_map(options, app_path, work.path() + "/map", cache);
} catch (const std::bad_alloc&) {
  return fail_errno(options.command[0], "cannot resolve", ENOMEM);
}

AppEnd run(const GenOptions& options, OutputFile* json) {
  auto app_path = find_program(options.command[0]);
  if (!options.map.empty() && options.may_have_trees())
    if (auto in_trees = find_in_trees(options.map, options.command[0], app_path))
      app_path = std::move(*in_trees);
  if (!app_path) return {report_exec_failure(options.command[0], app_path.error().code())};
  const bool is_off = Environment().get("HEDDLE") == "off";
  // ld.so prints what it finds, as ldd does, and runs nothing.
  const bool is_listed = Environment().get("LD_TRACE_LOADED_OBJECTS").has_value();
  if ((is_off || is_listed) && !options.explain) {
    if (!options.out.empty() || !options.json_file.empty() || options.compare_runs > 0)
      warn(std::string(is_off ? "HEDDLE=off" : "LD_TRACE_LOADED_OBJECTS") +
           ": --out, --learn, --json and --compare do nothing");
    leave_standing_mount();
    return become_app(options, *app_path);
  }
  const auto cache = cache_for(options);
  const auto plain = cache ? plain_key(options, *app_path) : "";
  const bool is_plain = !plain.empty() && cache->is_plain(plain, *app_path, [&] {
    return plain_trees(find_tree_candidates(options));
  });
  if (is_plain && !options.explain) {
    if (!options.quiet)
      say(escape_for_terminal(options.command[0]) +
          ": runs without heddle: nothing to gain (fs-gen --explain)");
    return become_app(options, *app_path);
  }
  auto work = make_work_dir();
  auto map = work ? prepare_if_memory_suffices(options, *app_path, *work, cache ? &*cache : nullptr)
                  : Result<PreparedMap>(fail(Error(work.error())));
  if (map && !cache && options.may_be_cached()) map->not_cached = cache.error().message();
  if (options.explain) {
    if (map) return explain(options, *map, is_plain, cache ? "" : cache.error().message());
    if (!can_do_without(options)) throw Error(map.error());
    const auto text = escape_for_terminal(options.command[0]) + ": runs unguided: ";
    value_or_throw(write_all(STDOUT_FILENO, text + map.error().message() + "\n", "stdout"));
    return {};
  }
  if (map && options.compare_runs > 0) return compare(options, *app_path, *map, json);
  auto done = map ? run_best(options, *app_path, *map, std::move(*work))
                  : Result<RunReport>(fail(Error(map.error())));
  if (!done) {
    if (!can_do_without(options)) throw Error(done.error());
    const Error why = done.error();
    warn(Error("", why.message(), "continuing without heddle", why.hint()));
    // A process of ours beside it may have no room, or no descriptors.
    if (why.code() != ENOMEM) done = run_plain(options, *app_path, why.message());
    if (!done) {
      if (json) warn("--json does nothing");
      work = fail(Error(why));  // its directory is removed
      leave_standing_mount();
      return become_app(options, *app_path);
    }
  }
  if (done->exec_error != 0) return {report_exec_failure(options.command[0], done->exec_error)};
  if (cache && map && !map->key.empty()) remember(options, *app_path, *map, *done, *cache, plain);
  const auto end = report_run(options, *done, json);
  return options.learn ? learn(options, *app_path, done->learned_run, end) : end;
}

/// Before APP runs, so that an unwritable output fails early.
std::optional<OutputFile> prepare_outputs(const GenOptions& options) {
  if (!options.out.empty()) (void)value_or_throw(AtomicFile::create(options.out));
  if (options.json_file.empty()) return std::nullopt;
  return value_or_throw(OutputFile::prepare(options.json_file));
}

int run_program(int argc, const char* const* argv) {
  if (argc > 1 && std::string_view(argv[1]) == "cache")
    return manage_cache({argv + 2, argv + argc});
  const auto parsed = parse_gen_options(argc, argv);
  if (!parsed.options) return parsed.exit_status;
  const GenOptions& options = *parsed.options;
  clean_up_on_signals();
  if (options.print_env) return print_env(options);
  auto json = prepare_outputs(options);
  if (options.doctor) return examine_node(json ? &*json : nullptr);
  if (const auto stage = check_stage(options); !stage && options.first_rank) warn(stage.error());
  return end_like(run(options, json ? &*json : nullptr));
}

}  // namespace
}  // namespace heddle

int main(int argc, char** argv) {
  return heddle::run_main("fs-gen", [&] { return heddle::run_program(argc, argv); });
}
