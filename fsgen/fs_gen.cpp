// SPDX-License-Identifier: MIT
// The program fs-gen. Its exit status is APP's, 126 or 127 as a shell gives them, or ExitCode.

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <functional>
#include <nlohmann/json.hpp>

#include "base/escape.hpp"
#include "base/exit_code.hpp"
#include "base/fd.hpp"
#include "base/find_program.hpp"
#include "base/launch/app_process.hpp"
#include "base/log.hpp"
#include "base/output_file.hpp"
#include "base/run_main.hpp"
#include "base/temp_dir.hpp"
#include "fsgen/gen_options.hpp"
#include "fsgen/guided_run.hpp"
#include "fsgen/prepare_map.hpp"
#include "fuseovl/files/stage_directory.hpp"

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
/// and their ratio to stderr, and to `json` if not null. Each guided run has a mount of its own, so
/// none is a warm start. Result: the first failed run's end, else success.
AppEnd compare(const GenOptions& options, const std::string& app_path, const PreparedMap& map,
               OutputFile* json) {
  std::vector<std::uint64_t> plain;
  std::vector<std::uint64_t> guided;
  std::vector<std::uint64_t> mounting;
  unsigned guided_runs = 0, failed_without = 0, failed_with = 0;
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
    say(
        fmt::format("with it each run has a fresh mount: looking through it is counted, resolving "
                    "({:.1f} ms, once) and mounting ({:.1f} ms) are not",
                    static_cast<double>(map.resolve_ns) / 1e6, median_ms(mounting)));
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

/// `--learn`: calls `run` with a log for what its processes load, and writes the map with all of
/// that to options.out. Result: run's end; an unwritable map is reported, and is exit_failure if
/// APP succeeded.
AppEnd learn(const GenOptions& options, const std::string& app_path,
             const std::function<AppEnd(const GenOptions&)>& run) {
  // Not in the run's directory, which ends with the mount. The log is owner-only: a user who can
  // write to the log chooses what later runs load.
  const auto directory = value_or_throw(make_work_dir());
  GenOptions once = options;
  once.out.clear();
  once.learn_log = directory.path() + "/log";
  (void)value_or_throw(open_file(once.learn_log, O_WRONLY | O_CREAT | O_EXCL, 0600));
  const AppEnd end = run(once);
  auto learned = read_learned_run(once.learn_log);
  auto map = learned ? prepare_map(options, app_path, "", *learned)
                     : Result<PreparedMap>(fail(std::move(learned.error())));
  if (!map) {
    report(map.error());
    return end.status == exit_done ? AppEnd{exit_failure} : end;
  }
  std::size_t names = 0;
  for (const auto& [path, program] : *learned) names += program.libraries.size();
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

/// Whether to run the program unguided on failure.
bool can_do_without(const GenOptions& o) {
  return o.via == Via::best && o.loader == LoaderKind::audit && o.map.empty() && o.out.empty() &&
         o.plugin_directories.empty() && o.compare_runs == 0 && !o.learn;
}

AppEnd run(const GenOptions& options, OutputFile* json) {
  auto app_path = find_program(options.command[0]);
  if (!app_path) return {report_exec_failure(options.command[0], app_path.error().code())};
  if (options.learn && options.learn_log.empty())
    return learn(options, *app_path, [&](const GenOptions& once) { return run(once, json); });
  auto work = make_work_dir();
  auto map = work ? prepare_map(options, *app_path, work->path() + "/map")
                  : Result<PreparedMap>(fail(Error(work.error())));
  if (map && options.compare_runs > 0) return compare(options, *app_path, *map, json);
  auto done = map ? run_best(options, *app_path, *map, std::move(*work))
                  : Result<RunReport>(fail(Error(map.error())));
  if (!done) {
    if (!can_do_without(options)) throw Error(done.error());
    const Error why = done.error();
    warn(Error("", why.message(), "continuing without heddle", why.hint()));
    done = value_or_throw(run_plain(options, *app_path, why.message()));
  }
  if (done->exec_error != 0) return {report_exec_failure(options.command[0], done->exec_error)};
  return report_run(options, *done, json);
}

/// The daemon then stages nothing, and its own warning is not shown.
void warn_of_stage(const std::string& directory) {
  if (directory.empty()) return;
  if (const auto stage = StageDirectory::open(directory); !stage) warn(stage.error());
}

/// Before APP runs, so that an unwritable output fails early.
std::optional<OutputFile> prepare_outputs(const GenOptions& options) {
  if (!options.out.empty()) (void)value_or_throw(AtomicFile::create(options.out));
  if (options.json_file.empty()) return std::nullopt;
  return value_or_throw(OutputFile::prepare(options.json_file));
}

int run_program(int argc, const char* const* argv) {
  const auto parsed = parse_gen_options(argc, argv);
  if (!parsed.options) return parsed.exit_status;
  const GenOptions& options = *parsed.options;
  clean_up_on_signals();
  if (options.print_env) return print_env(options);
  auto json = prepare_outputs(options);
  warn_of_stage(options.stage);
  return end_like(run(options, json ? &*json : nullptr));
}

}  // namespace
}  // namespace heddle

int main(int argc, char** argv) {
  return heddle::run_main("fs-gen", [&] { return heddle::run_program(argc, argv); });
}
