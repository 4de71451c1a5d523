// SPDX-License-Identifier: MIT
// The program fs-launch: one word before the user's own mpirun or srun line, which it does not
// change, and reads only for what keeps its variables from ranks (launch/launcher_line.hpp). It
// sets the variables of launch/hooks.hpp and becomes the launcher. Each rank executes this program
// once more (launch/rank_agent.hpp), which is static: a rank's LD_PRELOAD, LD_AUDIT and
// LD_LIBRARY_PATH do not reach it.

#include <elf.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <iterator>
#include <set>
#include <sstream>
#include <utility>

#include "base/child.hpp"
#include "base/command_line.hpp"
#include "base/escape.hpp"
#include "base/exit_code.hpp"
#include "base/find_program.hpp"
#include "base/launch/app_process.hpp"
#include "base/launch/rank.hpp"
#include "base/log.hpp"
#include "base/open_regular.hpp"
#include "base/rank_mark.hpp"
#include "base/run_directory.hpp"
#include "base/run_main.hpp"
#include "base/temp_dir.hpp"
#include "base/try.hpp"
#include "fsgen/doctor.hpp"
#include "fsgen/guided_environment.hpp"
#include "jobs/archive.hpp"
#include "jobs/commands.hpp"
#include "jobs/metadata.hpp"
#include "jobs/spool.hpp"
#include "launch/allocation.hpp"
#include "launch/hooks.hpp"
#include "launch/profile.hpp"
#include "launch/rank_agent.hpp"
#include "launch/rank_container.hpp"
#include "launch/rank_report.hpp"
#include "launch/rank_signals.hpp"
#include "launch/rank_watch.hpp"
#include "launch/session/hold.hpp"
#include "launch/step_check.hpp"
#include "launch/sub_commands.hpp"
#include "resolver/elf/cached_facts.hpp"

namespace heddle::launch {
namespace {

using Words = std::vector<std::string>;
using Clock = std::chrono::steady_clock;
/// The agents of a node end soon after the launcher that has killed them.
constexpr std::chrono::seconds kAgentsEnd{5};

struct Options {
  LaunchSettings settings;
  std::string profile;
  std::string ship;  ///< empty: sbcast
  HoldSettings hold;
  std::string hold_id;
  int hold_limit = 0;
  int tool = -1;
  bool report = false;
  bool job = false;
  bool dry_run = false;
  bool quiet = false;
  Words command;
};

void add_options(CLI::App& app, Options& o) {
  auto& s = o.settings;
  set_usage(app,
            "fs-launch [OPTIONS] [--] LAUNCHER ARGS...\n       fs-launch profile|session COMMAND "
            "...\n       fs-launch release ID\n       fs-launch pmix run|query|launch ...");
  app.set_version_flag("--version", "fs-launch (heddle) " HEDDLE_VERSION);
  app.add_option("--profile", o.profile,
                 "What this profile names (default: the one that fs-launch profile use selected)")
      ->type_name("NAME");
  app.add_option("--map", s.map,
                 "Guide the ranks by this map or bundle (default: each node resolves, once)")
      ->type_name("MAP");
  app.add_option(
         "--ship", o.ship,
         "What copies a bundle to the nodes of a Slurm job: sbcast (default), another engine "
         "of fs-ship, or no")
      ->type_name("ENGINE");
  app.add_option("--stage", s.stage,
                 "Copy the files to this directory on each node, serve the copies")
      ->type_name("DIR");
  const auto add_list = [&](const char* name, Words& list, const char* text) {
    app.add_option(name, list, text)->type_name("DIR")->allow_extra_args(false);
  };
  add_list("--slow", s.slow, "The files below DIR are slow: a mount pays (repeatable)");
  add_list("--fast", s.fast, "The files below DIR are fast: they need no mount (repeatable)");
  add_list("--tree", s.trees, "Serve the directory tree DIR over its own path (repeatable)");
  app.add_option("--python", s.python, "As fs-gen --python")->type_name("auto|off|EXE");
  add_choice<std::string>(app, "--via", s.via,
                          {{"best", "best"},
                           {"private", "private"},
                           {"fusermount", "fusermount"},
                           {"direct", "direct"}},
                          "As fs-gen --via");
  app.add_option("--image", s.image,
                 "Run each rank in a container of this image, or of this unpacked root file system")
      ->type_name("IMAGE");
  std::vector<std::pair<std::string, std::string>> backends;
  for (const auto* name : kBackends) backends.emplace_back(name, name);
  add_choice<std::string>(
      app, "--backend", s.backend, backends,
      "What runs the containers (default: podman, or without it and for a directory bare)");
  app.add_option("--source", s.source,
                 "A script that a shell in the container reads before the program starts")
      ->type_name("SCRIPT");
  add_choice<std::string>(app, "--hold", o.hold.mode, {{"agent", "agent"}, {"exec", "exec"}},
                          "Hold the ranks before their program, or stopped after its exec, until "
                          "fs-launch release ID");
  app.add_option("--hold-id", o.hold_id, "Use this ID, instead of one that is printed")
      ->type_name("ID");
  app.add_option("--hold-limit", o.hold_limit, "Hold them this long at most (without a limit)")
      ->type_name("SECONDS")
      ->check(number_from(1, 1'000'000));
  app.add_option("--tool", o.tool, "Release held ranks when this process ends")->type_name("PID");
  add_choice<std::string>(app, "--on-tool-exit", o.hold.on_exit,
                          {{"release", "release"}, {"kill", "kill"}},
                          "What becomes of held ranks when the tool, fs-launch or the limit ends");
  app.add_flag(
      "--report", o.report,
      "When the launcher has ended, write to stderr which ranks were guided, and why others "
      "were not");
#ifdef HEDDLE_WITH_JOBS
  app.add_flag("--job", o.job,
               "Collect what the ranks do, as fs-job run: an archive a node in $HEDDLE_JOB_TO (.)");
#endif
  app.add_flag(
      "--dry-run", o.dry_run,
      "Start nothing; print the command with the variables that would be set, for a shell");
  app.add_flag("-q,--quiet", o.quiet, "No line on stderr when the job runs without heddle");
}

/// Paths that other nodes and working directories find. The environment's lists of slow directories
/// are passed on, since not every launcher passes the environment on.
void complete(LaunchSettings& s) {
  add_listed(s.slow, "HEDDLE_SLOW");
  add_listed(s.fast, "HEDDLE_FAST");
  const auto make_absolute = [](std::string& path) {
    std::error_code error;  // there is no working directory
    const auto made = path.empty() ? "" : std::filesystem::absolute(path, error);
    if (!error) path = made.string();
  };
  make_absolute(s.map);
  make_absolute(s.stage);
  make_absolute(s.source);
  std::error_code ignored;  // of an image that is no path
  if (std::filesystem::is_directory(s.image, ignored)) make_absolute(s.image);
  for (auto* list : {&s.slow, &s.fast, &s.trees}) std::ranges::for_each(*list, make_absolute);
  if (s.python.find('/') != s.python.npos) make_absolute(s.python);
}

/// Warns of what ranks would run without, or not at all: it may be missing on this node alone.
void warn_of_missing(const LaunchSettings& s) {
  std::error_code error;
  for (const auto& tree : s.trees)
    if (!std::filesystem::is_directory(tree, error))
      warn(Error(tree, "--tree: this node has no such directory", "",
                 "where ranks have none either they run without it"));
  if (const auto& python = s.python;
      !python.empty() && python != "auto" && python != "off" && !find_program(python))
    warn(Error(python, "--python: this node has no such program", "",
               "where ranks have none either they run without its trees"));
  if (!s.source.empty() && ::access(s.source.c_str(), R_OK) != 0)
    warn(Error::from_errno(s.source, "--source: cannot be read on this node", errno));
  if (s.image.starts_with('/') && ::access(s.image.c_str(), F_OK) != 0)
    warn(Error::from_errno(s.image, "--image: is not on this node", errno));
}

/// What the profile says and the command line does not. A profile that cannot be read ends
/// fs-launch, since the job would run without what was set up for it.
void apply_profile(Options& o) {
  const auto name = o.profile.empty() ? value_or_throw(selected_profile()) : o.profile;
  if (name.empty()) return;
  const auto found = find_profile(name);
  if (!found && o.profile.empty() && found.error().code() == ENOENT)
    throw Error(name, "the selected profile is gone", "", "fs-launch profile use --none");
  const auto path = value_or_throw(found);
  const auto profile = value_or_throw(read_profile(path));
  if (!profile.environment.empty() || !profile.files.empty()) o.settings.profile = path;
  const auto& container = profile.container;
  if (o.settings.image.empty()) o.settings.image = container.image;
  if (o.settings.map.empty() && o.settings.image.empty()) o.settings.map = profile.map;
  const bool is_contained = !o.settings.image.empty();
  if (is_contained && o.settings.backend.empty()) o.settings.backend = container.backend;
  if (is_contained && o.settings.source.empty()) o.settings.source = container.source;
  const auto& library = profile.mpi.library;
  if (!o.settings.image.empty()) o.settings.mpi = library;
  if (!o.quiet && !library.empty() && ::access(library.c_str(), F_OK) != 0)
    warn(Error(library, "the profile's MPI library cannot be found", std::strerror(errno),
               "fs-launch profile edit " + name + " --mpi DIR"));
}

/// Which ends before its job begins, without --wait.
bool is_sbatch(const std::string& launcher) { return launcher.ends_with("/sbatch"); }

/// Becomes the launcher at `path`. Returns the exit status when that fails.
int become_launcher(const Result<std::string>& path, const Words& command) {
  const int error = path ? execute({*path, command, Environment().entries()}) : path.error().code();
  return report_exec_failure(command[0], error);
}

/// `--report`, `--hold`, `--job`: runs the launcher `path` beside this process, which then prints
/// the table.
AppEnd run_launcher(const std::string& path, const Words& command, const std::string& reports) {
  const auto begin = Clock::now();
  auto signals = value_or_throw(SignalRelay::start());
  auto app =
      value_or_throw(AppProcess::start({path, command, Environment().entries()}, {}, signals));
  // After the launcher: a signal between the two would reach the witness alone.
  auto witness = GroupWitness::start();
  if (witness) signals.leave_to_group([&](int number) { return witness->has_got(number); });
  if (auto started = app.run(); !started)
    return {report_exec_failure(command[0], started.error().code())};
  if (reports.empty()) return value_or_throw(app.wait(signals));
  const RankWatch watch(reports.substr(reports.rfind('/') + 1),
                        path.ends_with("/srun") ? app.pid() : 0);
  const auto end = value_or_throw(app.wait(signals));
  const std::chrono::duration<double> time = Clock::now() - begin;
  const SigpipeHeld held;
  const auto of_ranks = read_reports(reports);
  const auto waits = [](const std::string& word) { return word == "--wait" || word == "-W"; };
  if (is_sbatch(path) && end.status == 0 && of_ranks.empty() &&
      std::ranges::none_of(command, waits))
    say("the batch job has a report with sbatch --wait only");
  else
    say_text("fs-launch: " + to_table(of_ranks, time.count(), watch.seen(), end.status) +
             read_daemon_logs(reports));
  return end;
}

/// Below the cache, or where that cannot be used, in a directory that other nodes do not see.
Result<ReportDirectory> make_reports(bool quiet) {
  const auto make = [](const std::string& parent) {
    std::error_code ignored;  // make() fails then
    std::filesystem::create_directories(parent, ignored);
    return ReportDirectory::make(parent);
  };
  const auto cache = cache_directory();
  auto made = cache ? make(*cache) : Result<ReportDirectory>(fail(cache.error()));
  if (made) return made;
  const auto here = RunDirectory::open();
  if (!here) return made;
  auto second = make(here->path());
  if (second && !quiet)
    warn(Error("", made.error().message(), "only ranks of this node report",
               "XDG_CACHE_HOME=DIR, which all nodes see"));
  return second;
}

void prepare_image(LaunchSettings& settings) {
  RankContainer container;
  container.image = settings.image;
  container.backend = settings.backend;
  container.mpi = settings.mpi;
  value_or_throw(prepare_containers(container));
  settings.backend = container.backend;
  settings.hooks = container.hooks;
}

#ifdef HEDDLE_WITH_JOBS
/// All nodes get one id and start, so that their archives are one job's.
void prepare_job(LaunchSettings& settings) {
  const auto variable = [](const char* name, const std::string& otherwise) {
    const char* value = std::getenv(name);
    return value && *value ? value : otherwise;
  };
  // Without a scheduler's each launch is a job of its own.
  settings.job = value_or_throw(jobs::job_id(
      jobs::is_in_scheduled_job() ? ""
                                  : fmt::format("{}{}-{}", kOwnJob, jobs::now_us(), ::getpid())));
  settings.job_start = variable("HEDDLE_JOB_START", std::to_string(jobs::now_us()));
  std::error_code error;  // there is no working directory
  const std::filesystem::path given = variable("HEDDLE_JOB_TO", ".");
  const auto made = std::filesystem::absolute(given, error);
  const auto to = (error ? given : made).lexically_normal();
  settings.job_to = to.has_filename() ? to.string() : to.parent_path().string();
}

/// A launcher that is interrupted kills its ranks, and the agents that would write their node's
/// archive. If none is left to do it, this node's is written here. `before`: the archives that were
/// there when it began.
void finish_job(const LaunchSettings& settings, const std::set<std::string>& before,
                const std::string& launcher, AppEnd end, bool quiet) {
  const bool is_normal = end.status == 0 && end.signal == 0;
  // Ranks in a job that the launcher made are collected as that.
  auto ids = jobs::jobs_of_launch(settings.job_start);
  if (std::ranges::count(ids, settings.job) == 0) ids.push_back(settings.job);
  for (const auto& id : ids) {
    const auto staged =
        jobs::stage_killed_job(id, is_normal ? std::chrono::seconds(0) : kAgentsEnd);
    if (!staged) return warn(staged.error());
    if (!*staged) return;
  }
  const auto named = [](const std::set<std::string>& names, const char* what) {
    constexpr std::size_t kMostNamed = 8;
    return escape_for_terminal(names.size() > kMostNamed
                                   ? fmt::format("{} {}", names.size(), what)
                                   : fmt::format("{}", fmt::join(names, ", ")));
  };
  const auto hosts = jobs::archived_hosts(settings.job, settings.job_to);
  std::string line = fmt::format("job {}: archives of {} are in {}", settings.job,
                                 named(hosts, "nodes"), settings.job_to);
  if (hosts.empty()) {
    std::set<std::string> made;
    for (const auto& name : jobs::archives_in(settings.job_to))
      if (!before.contains(name) &&
          jobs::is_of_launch(settings.job_to + "/" + name, settings.job_start))
        made.insert(name);
    line = fmt::format("new in {}: {}", settings.job_to, named(made, "archives"));
    if (made.empty() && is_normal && is_sbatch(launcher))
      line = "when the batch job has run its archives are in " + settings.job_to;
    else if (made.empty())
      return warn("job " + settings.job + ": " + settings.job_to + " here has no archive of it");
  }
  // Of ranks on this node alone none is missing.
  const bool is_here = !jobs::is_in_scheduled_job() && hosts == std::set{host_name()};
  if (!quiet)
    say(line + (is_normal || is_here
                    ? ""
                    : "; fs-job stage --left writes that of a node whose agents were killed"));
}
#endif

/// As a shell reads it; with control bytes, as bash does ($'...').
std::string to_shell_word(const std::string& text) {
  constexpr const char* kPlain =
      "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_@%+:,./-";
  if (!text.empty() && text.find_first_not_of(kPlain) == text.npos) return text;
  std::string unescaped = text;
  std::erase(unescaped, '\\');  // the one printable character that is escaped
  if (escape_for_terminal(unescaped) == unescaped) return quote_for_shell(text);
  std::string out = "$'";
  for (const char c : escape_for_terminal(text)) {
    if (c == '\'') out += '\\';
    out += c;
  }
  return out + "'";
}

void print_plan(const Hooks& hooks, const Words& command) {
  std::string out;
  for (const auto& [name, value] : hooks.variables)
    out += name + "=" + to_shell_word(value) + " \\\n";
  const char* space = "";
  for (const auto& word : command) out += std::exchange(space, " ") + to_shell_word(word);
  value_or_throw(write_all(STDOUT_FILENO, out + "\n", "stdout"));
}

/// Sets a profile's variables in this process, for ranks that no agent sets them in. Empty path:
/// false.
bool set_variables(const std::string& profile) {
  if (profile.empty()) return false;
  const auto variables = value_or_throw(read_profile(profile)).environment;
  for (const auto& [name, value] : variables) ::setenv(name.c_str(), value.c_str(), 1);
  return !variables.empty();
}

/// The options given for ranks that no image holds.
std::string given_for_guiding(const LaunchSettings& s, const std::string& ship) {
  std::string out;
  const auto add = [&](const char* name, bool is_given) {
    if (is_given) out += (out.empty() ? "" : ", ") + std::string(name);
  };
  add("--map", !s.map.empty());
  add("--ship", !ship.empty());
  add("--stage", !s.stage.empty());
  add("--slow", !s.slow.empty());
  add("--fast", !s.fast.empty());
  add("--tree", !s.trees.empty());
  add("--python", !s.python.empty());
  add("--via", !s.via.empty());
  return out;
}

/// What an fs-launch that has started this one without a launcher between them gives the ranks, and
/// this one's own would replace. nullopt: there is none.
std::optional<LaunchSettings> outer_settings() {
  const auto value = Environment().get(kLaunchVariable);
  if (!value || with_own_mark(*value) != *value) return std::nullopt;
  auto out = decode(*value);
  if (!out)
    warn("the fs-launch around this one is of another version: what it was given has no effect");
  return out;
}

/// Adds to `own` what only `outer` has. Of an image and what guides ranks outside of images `own`
/// has one at most.
void inherit(LaunchSettings& own, const LaunchSettings& outer) {
  const auto take = [&](auto LaunchSettings::*field) {
    if ((own.*field).empty()) own.*field = outer.*field;
  };
  const auto add = [&](std::vector<std::string> LaunchSettings::*field) {
    (own.*field).insert((own.*field).end(), (outer.*field).begin(), (outer.*field).end());
  };
  if (own.image.empty()) {
    if (own.map.empty()) {
      own.ship = outer.ship;
      own.bundle = outer.bundle;
    }
    for (auto field : {&LaunchSettings::map, &LaunchSettings::stage, &LaunchSettings::via,
                       &LaunchSettings::python})
      take(field);
    for (auto field : {&LaunchSettings::slow, &LaunchSettings::fast, &LaunchSettings::trees})
      add(field);
    for (auto field : {&LaunchSettings::image, &LaunchSettings::backend, &LaunchSettings::source,
                       &LaunchSettings::hooks, &LaunchSettings::mpi})
      take(field);
  }
  for (auto field : {&LaunchSettings::profile, &LaunchSettings::reports}) take(field);
  if (own.hold.empty()) {
    own.hold = outer.hold;
    own.hold_exit = outer.hold_exit;
    own.hold_directory = outer.hold_directory;
  }
  if (own.job.empty()) {
    own.job = outer.job;
    own.job_start = outer.job_start;
    own.job_to = outer.job_to;
  }
}

/// `fs-launch ./app` starts no rank. Not said of what may start some: scripts, and the system's
/// programs, as shells are.
void warn_of_no_launcher(const std::string& path, const Words& command) {
  constexpr std::string_view kParts[] = {"run",    "mpiexec", "launch", "sbatch",
                                         "salloc", "sub",     "flux"};
  if (path.starts_with("/usr/") || path.starts_with("/bin/")) return;
  for (const auto& word : command)
    for (const auto part : kParts)
      if (word.find(part) != word.npos) return;
  char head[SELFMAG] = {};
  const auto file = open_regular(path);
  if (!file || ::read(file->get(), head, sizeof head) != sizeof head ||
      std::memcmp(head, ELFMAG, sizeof head) != 0)
    return;
  warn(Error(command[0], "is no launcher of ranks that fs-launch knows",
             "only ranks that it starts are guided",
             "fs-launch goes before mpirun or srun; one program: fs-gen " + command[0]));
}

AppEnd launch(Options& o) {
  const auto launcher = find_program(o.command[0]);
  if (!launcher) return {report_exec_failure(o.command[0], launcher.error().code())};
  if (Environment().get("HEDDLE") == "off") {
    if (o.dry_run) return print_plan({}, o.command), AppEnd();
    if ((o.report || o.job) && !o.quiet) warn("HEDDLE=off: nothing is reported or collected");
    remove_hooks();
    leave_standing_mount();
    return {become_launcher(launcher, o.command)};
  }
  const auto guiding = given_for_guiding(o.settings, o.ship);
  const bool is_named = !o.settings.image.empty();
  const auto outer = outer_settings();
  remove_step_check();                                 // this one plans its own
  if (!outer || !o.profile.empty()) apply_profile(o);  // else the outer one has done so
  if (outer && !outer->image.empty() && !guiding.empty())
    return {usage_error("fs-launch", guiding + ": not allowed within fs-launch --image")};
  if (outer && o.report && !outer->reports.empty()) {
    if (!o.quiet) warn("--report: the fs-launch around this one writes it");
    o.report = false;
  }
  for (const auto& [name, both] :
       {std::pair{"--hold", outer && !o.hold.mode.empty() && !outer->hold.empty()},
        {"--job", outer && o.job && !outer->job.empty()}})
    if (both && !o.quiet)
      warn(std::string(name) + ": replaces that of the fs-launch around this one");
  const auto replaced =
      outer && !o.settings.image.empty() ? given_for_guiding(*outer, "") : std::string();
  if (!replaced.empty() && !o.quiet)
    warn("the image replaces " + replaced + " of the fs-launch around this one");
  if (!guiding.empty() && !o.settings.image.empty())
    return {usage_error("fs-launch", guiding + ": not allowed with " +
                                         (is_named ? "--image" : "the profile's image") +
                                         ", in which fs-hook decides what the ranks get")};
  complete(o.settings);
  if (o.quiet) o.settings.quiet = "yes";
  const bool is_contained = !o.settings.image.empty() || (outer && !outer->image.empty());
  if (!is_contained && !(o.settings.backend + o.settings.source).empty())
    return {usage_error("fs-launch", "--backend and --source: need --image")};
  if (!o.ship.empty() && o.ship != "no" && o.settings.map.empty())
    return {usage_error("fs-launch", "--ship: needs a bundle as --map")};
  if (!o.quiet) warn_of_missing(o.settings);
  if (!o.quiet) warn_of_no_launcher(*launcher, o.command);
  if (!o.settings.stage.empty() && o.settings.via == "direct")
    return {usage_error("fs-launch",
                        "--stage: not allowed with --via direct, where no mount serves copies")};
  std::optional<ReportDirectory> reports;
  const auto unguided = [&](const Error& why) -> AppEnd {
    // The ranks would run outside of the image, or at once.
    if (!o.settings.image.empty() || !o.hold.mode.empty()) throw why;
    std::string what = outer ? "the ranks get what the fs-launch around this one was given"
                             : "the job runs without heddle";
    if (o.job) what += ", and is not collected";
    if (!o.dry_run && set_variables(o.settings.profile))
      what += "; the profile's variables are set for ranks that get this environment";
    if (!o.quiet || o.report || o.job) warn(Error("", why.message(), what, why.hint()));
    if (o.dry_run) return print_plan({}, o.command), AppEnd();
    reports.reset();
    return {become_launcher(launcher, o.command)};
  };
  if (o.report && !o.dry_run) {
    auto made = make_reports(o.quiet);
    if (made)
      reports = std::move(*made);
    else
      warn(Error("", made.error().message(), "there will be no report"));
    if (reports) o.settings.reports = reports->path();
  }
  const auto line = LauncherLine(*launcher, o.command, false).nodes();
  if (auto ready = prepare_nodes(o.settings, line, {o.ship, o.dry_run}); !ready)
    return unguided(ready.error());
  if (!o.settings.image.empty() && !o.dry_run) prepare_image(o.settings);
  std::optional<Hold> hold;
  if (!o.hold.mode.empty() && !o.dry_run) {
    hold.emplace(value_or_throw(
        Hold::create(o.hold_id, o.tool, o.hold.on_exit, std::chrono::seconds(o.hold_limit))));
    o.settings.hold = o.hold.mode;
    o.settings.hold_exit = o.hold.on_exit;
    o.settings.hold_directory = hold->path();
    const auto id = hold->path().substr(hold->path().rfind('/') + 1);
    if (o.hold_id.empty()) say("ranks will be held: fs-launch release " + id);
  }
#ifdef HEDDLE_WITH_JOBS
  if (o.job) prepare_job(o.settings);
#endif
  if (outer) inherit(o.settings, *outer);
  const auto hooks = hooks_for(o.settings, *launcher, o.command);
  if (!hooks) return unguided(hooks.error());
  if (!o.quiet)
    for (const auto& note : hooks->notes) warn(note);
  if (o.dry_run) {
    print_plan(*hooks, o.command);
    return {};
  }
#ifdef HEDDLE_WITH_JOBS
  const auto archives = o.job ? jobs::archives_in(o.settings.job_to) : std::set<std::string>();
#endif
  for (const auto& [name, value] : hooks->variables) ::setenv(name.c_str(), value.c_str(), 1);
  if (!reports && !hold && !o.job) return {become_launcher(launcher, o.command)};
  const auto end = run_launcher(*launcher, o.command, reports ? reports->path() : "");
#ifdef HEDDLE_WITH_JOBS
  if (o.job) finish_job(o.settings, archives, *launcher, end, o.quiet);
#endif
  return end;
}

/// Becomes libexec/heddle/heddle-pmix (launch/pmix), the one program that needs libpmix. One error
/// where it is missing, or cannot be loaded.
[[noreturn]] void become_pmix(int argc, const char* const* argv) {
  const auto program = value_or_throw(own_program_dir()) + "/../libexec/heddle/heddle-pmix";
  (void)value_or_throw(pmix_version());
  const int error = execute({program, {argv, argv + argc}, Environment().entries()});
  throw Error::from_errno(program, "cannot be executed", error);
}

int run_program(int argc, char** argv) {
  if (argc > 0 && is_step_check(argv[0])) return check_step(argc, argv);
  if (argc > 1 && std::string_view(argv[1]) == kRankOption) return become_rank(argc, argv);
  if (argc == 2 && std::string_view(argv[1]) == kCheckOption) return check_node();
  if (argc == 4 && std::string_view(argv[1]) == kMarkOption) return mark_step(argv[2], argv[3]);
  Options o;
  CLI::App app("Start an MPI job whose ranks find their libraries in advance, by its own launcher.",
               "fs-launch");
  add_options(app, o);
  forbid_empty_values(app);
  auto split = split_command_line(app, argc, argv);
  // `--hold` alone is `--hold agent`.
  if (const auto at = std::ranges::find(split.options, "--hold");
      at != split.options.end() &&
      (at + 1 == split.options.end() || (at[1] != "agent" && at[1] != "exec"))) {
    static char agent[] = "--hold=agent";
    argv[1 + (at - split.options.begin())] = agent;
    split = split_command_line(app, argc, argv);
  }
  if (const int status = parse_options(app, std::move(split.options)); status >= 0) return status;
  if (split.command.empty() || split.command[0].empty())
    return usage_error("fs-launch", "no launcher given");
  const auto words = static_cast<int>(split.command.size());
  if (std::string_view(argv[argc - words - 1]) != "--") {
    if (split.command[0] == "profile") return profile_main(words, argv + argc - words);
    if (split.command[0] == "session") return session_main(words, argv + argc - words);
    if (split.command[0] == "pmix") become_pmix(words, argv + argc - words);
    if (split.command[0] == "release") return release_main(words, argv + argc - words);
  }
  if (o.hold.mode == "exec" && !o.settings.image.empty())
    return usage_error("fs-launch", "--hold exec and --image exclude each other");
  if (o.hold.mode.empty() && (!o.hold_id.empty() || o.hold_limit != 0 || o.tool >= 0))
    return usage_error("fs-launch", "--hold-id, --hold-limit and --tool need --hold");
  if (o.job && (!o.settings.image.empty() || !o.hold.mode.empty()))
    return usage_error("fs-launch", "--job excludes --image and --hold");
  o.command = std::move(split.command);
  clean_up_on_signals();
  return end_like(launch(o));
}

}  // namespace
}  // namespace heddle::launch

int main(int argc, char** argv) {
  return heddle::run_main("fs-launch", [&] { return heddle::launch::run_program(argc, argv); });
}
