// SPDX-License-Identifier: MIT
#include "launch/rank_agent.hpp"

#include <fcntl.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <ranges>
#include <sstream>
#include <string_view>

#include "base/child.hpp"
#include "base/find_program.hpp"
#include "base/launch/app_process.hpp"
#include "base/launch/rank.hpp"
#include "base/log.hpp"
#include "base/open_regular.hpp"
#include "base/rank_mark.hpp"
#include "base/run_main.hpp"
#include "base/temp_dir.hpp"
#include "base/try.hpp"
#include "fsgen/guided_environment.hpp"
#include "fsgen/guided_run.hpp"
#include "jobs/commands.hpp"
#include "jobs/metadata.hpp"
#include "jobs/own_use.hpp"
#include "jobs/spool.hpp"
#include "launch/hooks.hpp"
#include "launch/profile.hpp"
#include "launch/rank_container.hpp"
#include "launch/rank_report.hpp"
#include "launch/rank_signals.hpp"
#include "launch/session/hold.hpp"
#include "launch/step_check.hpp"
#include "resolver/map/learn_format.hpp"

namespace heddle::launch {
namespace {

using Clock = std::chrono::steady_clock;

/// What of this process the rank inherits and the preparation changes.
class Inherited {
 public:
  Inherited() : error_(::fcntl(STDERR_FILENO, F_DUPFD_CLOEXEC, 3)) {
    struct sigaction defaults {};
    defaults.sa_handler = SIG_DFL;
    ::sigaction(SIGCHLD, &defaults, &child_);  // with SIG_IGN the kernel would reap our children
    ::prctl(PR_GET_PDEATHSIG, &death_signal_);
    const Fd text(::memfd_create("heddle-messages", MFD_CLOEXEC));
    if (error_ && text) ::dup2(text.get(), STDERR_FILENO);
  }
  /// What was written to standard error meanwhile, without hints, on one line.
  std::string messages() const {
    char text[2048];
    const auto got = error_ ? ::pread(STDERR_FILENO, text, sizeof text, 0) : 0;
    std::istringstream lines(
        std::string(text, static_cast<std::size_t>(std::max<ssize_t>(got, 0))));
    std::string out;
    for (std::string line; std::getline(lines, line);) {
      std::string_view said = line;
      if (said.starts_with("hint: ")) continue;
      for (const std::string_view begin : {"fs-launch: ", "warning: "})
        if (said.starts_with(begin)) said.remove_prefix(begin.size());
      out += out.empty() ? "" : "; ";
      out += said;
    }
    return out;
  }
  void restore() const {
    if (error_) ::dup2(error_.get(), STDERR_FILENO);
    // One of a child of ours stays pending where the launcher blocks it.
    sigset_t only;
    ::sigemptyset(&only);
    ::sigaddset(&only, SIGCHLD);
    const timespec now{};
    ::sigtimedwait(&only, nullptr, &now);
    ::sigaction(SIGCHLD, &child_, nullptr);
    ::prctl(PR_SET_PDEATHSIG, death_signal_);  // a user namespace clears it
  }

 private:
  Fd error_;
  struct sigaction child_ {};
  int death_signal_ = 0;
};

std::uint64_t job_size() {
  for (const char* name : kSizeVariables)
    if (const char* text = std::getenv(name)) return std::strtoull(text, nullptr, 10);
  return 0;
}

GenOptions gen_options(const LaunchSettings& settings) {
  GenOptions out;
  out.map = settings.map;
  out.stage = settings.stage;
  out.slow = settings.slow;
  out.fast = settings.fast;
  out.trees = settings.trees;
  if (!settings.python.empty()) out.python = settings.python;
  out.via = settings.via == "private"      ? Via::private_mount
            : settings.via == "fusermount" ? Via::fusermount
            : settings.via == "direct"     ? Via::direct
                                           : Via::best;
  // A log that cannot be opened would cost the mount.
  const auto log = settings.reports.empty() ? "" : daemon_log(settings.reports, host_name());
  if (!log.empty() && open_log(log)) out.log = log;
  out.first_rank = false;
  out.quiet = true;
  return out;
}

/// Has the auditor log what this rank and its children load and execute, unless another rank of the
/// node does: the lock lasts as long as they do. The next launch reads it (take_learn_log()).
void log_for_next_launch(const std::string& path) {
  const Fd log(::open(path.c_str(), O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0600));
  if (log && ::flock(log.get(), LOCK_EX | LOCK_NB) == 0 && keep_over_exec(log.get()))
    ::setenv(learn_format::kVariable, path.c_str(), 1);
}

class Rank {
 public:
  Rank(std::string path, std::vector<std::string> command, LaunchSettings settings)
      : path_(std::move(path)), settings_(std::move(settings)), options_(gen_options(settings_)) {
    options_.command = std::move(command);
  }

  /// Executes the rank guided, or returns why it is none that can be. Failure: it could not be.
  Result<std::string> become_guided() {
    const auto cache = cache_for(options_);
    TempDir work;  // none, if possible: a rank that is killed now would leave it
    auto map = prepare_map(options_, path_, "", cache ? &*cache : nullptr);
    // A static program may start others.
    const auto has_content = [&] {
      return !map->content.programs.empty() || !map->content.trees.empty();
    };
    if (map && map->mount && !map->file && has_content()) {
      auto made = make_work_dir();
      if (!made) return fail(made.error());
      work = std::move(*made);
      map = prepare_map(options_, path_, work.path() + "/map", cache ? &*cache : nullptr);
    }
    if (!map) return fail(map.error());
    if (!options_.map.empty() && map->app()) {
      const auto fits = check_cpu(*map, true);  // the auditor would notice too late for the report
      if (!fits) return fail(fits.error());
    }
    if (!has_content()) return map->unguided_reason;
    if (cache && !map->key.empty()) log_for_next_launch(cache->learn_log(map->key));
    const auto done =
        become_best(options_, path_, *map, std::move(work), [&](const RunReport& report) {
          RankReport line;
          line.guided = report.guided;
          line.libraries = report.libraries;
          line.probes = report.probes_without;
          line.from_mount = report.shared;
          line.why = report.unguided_reason;
          if (!report.guided && !map->content.programs.empty()) {
            line.starts_guided = true;
            line.why += " (" + path_ + "): mapped programs that it starts are guided";
          } else if (report.probes_without == 0 && map->content.programs.size() > 1) {
            line.why = "mapped programs that it starts are guided, and not counted";
          }
          if (map->unguided_reason.empty())  // else no way would have guided it
            for (const auto& way : report.passed_over)
              line.why += (line.why.empty() ? "" : "; ") + way;
          if (const auto stage = check_stage(options_); !stage)
            line.why += (line.why.empty() ? "" : "; ") + stage.error().message();
          if (const auto said = inherited_.messages(); !said.empty())
            line.why += (line.why.empty() ? "" : "; ") + said;
          say_to_launcher(std::move(line));
          restore();
        });
    if (!done) return fail(done.error());
    return Error::from_errno(path_, "cannot be executed guided", done->exec_error).message();
  }

  int become_contained(const Result<Profile>& profile) {
    RankReport line;
    line.why = "fs-hook serves it in a container of " + settings_.image;
    say_to_launcher(std::move(line));
    restore("");  // a container's engine
    if (!profile) {
      report(profile.error());
      return 126;
    }
    RankContainer container{settings_.image, settings_.backend, settings_.source,
                            settings_.hooks, settings_.mpi,     profile->files};
    for (const auto& [name, value] : profile->environment) container.names.push_back(name);
    return enter_container(container, path_, options_.command);
  }

  /// `warning`: a line for standard error, if any.
  int become_unguided(const std::string& why, const Error* warning = nullptr) {
    ::unsetenv(learn_format::kVariable);
    RankReport line;
    line.why = why.empty() ? inherited_.messages() : why;
    say_to_launcher(std::move(line));
    restore();
    if (warning) {
      const SigpipeHeld held;
      warn(*warning);
    }
    const int error = execute({path_, options_.command, Environment().entries()});
    return report_exec_failure(options_.command[0], error);
  }

 private:
  /// Last before the exec of the rank's program, or of `path`.
  void restore() const { restore(path_); }
  void restore(const std::string& path) const {
    inherited_.restore();
#ifdef HEDDLE_WITH_JOBS
    own_use_.end(path, options_.command);
#endif
  }
  void say_to_launcher(RankReport report) const {
    if (settings_.reports.empty()) return;
    report.node = host_name();
    report.process = static_cast<std::uint64_t>(::getpid());
    report.rank = static_cast<std::uint64_t>(rank_from_environment().value_or(0));
    report.size = job_size();
    const auto time = std::chrono::duration_cast<std::chrono::microseconds>(Clock::now() - begin_);
    report.microseconds = static_cast<std::uint64_t>(time.count());
    struct rusage used {};
    ::getrusage(RUSAGE_SELF, &used);
    const auto microseconds = [](const timeval& t) { return t.tv_sec * 1'000'000 + t.tv_usec; };
    report.cpu =
        static_cast<std::uint64_t>(microseconds(used.ru_utime) + microseconds(used.ru_stime));
    (void)write_report(settings_.reports, report);
  }

  const Clock::time_point begin_ = Clock::now();
  const Inherited inherited_;
#ifdef HEDDLE_WITH_JOBS
  const jobs::OwnUse own_use_;
#endif
  const std::string path_;
  const LaunchSettings settings_;
  GenOptions options_;
};

/// Whether the kernel may give the program rights, of its owner, its group or capabilities, that it
/// refuses to one that is traced or in the namespaces of a mount.
bool gains_rights(const std::string& path) {
  struct stat st {};
  return (::stat(path.c_str(), &st) == 0 && (st.st_mode & (S_ISUID | S_ISGID)) != 0) ||
         ::getxattr(path.c_str(), "security.capability", nullptr, 0) > 0;
}

/// Reads the profile `path` and sets its variables in this process. Empty path: an empty profile.
Result<Profile> take_profile(const std::string& path) {
  if (path.empty()) return Profile();
  auto profile = TRY(read_profile(path));
  for (const auto& [name, value] : profile.environment) ::setenv(name.c_str(), value.c_str(), 1);
  return profile;
}

#ifdef HEDDLE_WITH_JOBS
/// As `fs-job run`: starts this agent once more, without `settings.job`, and writes the node's
/// archive when the last rank there has ended. In this static program, so that a node without a
/// library of fs-job's runs its ranks.
int run_collected(const std::string& agent, LaunchSettings settings, const std::string& path,
                  const std::vector<std::string>& command) {
  std::vector<std::string> words{"run",           "-q",       "--to",
                                 settings.job_to, "--launch", settings.job_start};
  // In a job that the launcher has made fs-launch does not know its id.
  const bool is_made = jobs::is_in_scheduled_job() &&
                       (settings.job.starts_with(kOwnJob) ||
                        (!jobs::het_component() && jobs::job_id("").value_or("") != settings.job));
  if (!is_made) {
    ::setenv("HEDDLE_JOB_START", settings.job_start.c_str(), 1);
    words.insert(words.end(), {"--jobid", settings.job});
  }
  if (jobs::scheduled_name().empty())
    words.insert(words.end(), {"--name", path.substr(path.rfind('/') + 1)});
  words.insert(words.end(), {"--", agent, kRankOption, path});
  words.insert(words.end(), command.begin(), command.end());
  settings.job.clear();
  const auto pointers = to_c_array(words);
  const auto collect = [&](const std::string& signals) {
    settings.signals = signals;
    ::setenv(kLaunchVariable, encode(agent, settings).c_str(), 1);
    return jobs::run_command(static_cast<int>(words.size()), const_cast<char**>(pointers.data()));
  };
  const auto end = run_without_signals(collect);
  return end ? end_like(*end) : collect("");
}
#endif

}  // namespace

bool starts_ranks(const std::string& path) {
  constexpr std::string_view kNames[] = {"orted",
                                         "prted",
                                         "hydra_pmi_proxy",
                                         "hydra_bstrap_proxy",
                                         "pmi_proxy",
                                         "srun",
                                         "mpirun",
                                         "mpiexec",
                                         "orterun",
                                         "mpirun.openmpi",
                                         "mpiexec.openmpi",
                                         "prterun",
                                         "mpiexec.hydra",
                                         "mpiexec.mpich",
                                         "mpirun.mpich",
                                         "jsrun",
                                         "aprun",
                                         "flux",
                                         "prun",
                                         "heddle-pmix"};
  return std::ranges::count(kNames, std::string_view(path).substr(path.rfind('/') + 1)) > 0;
}

int become_rank(int argc, char** argv) {
  if (argc < 4) return 2;
  std::string path = argv[2];
  std::vector<std::string> words{argv + 3, argv + argc};
  const char* value = std::getenv(kLaunchVariable);
  auto settings = decode(value ? value : "");
  if (settings) restore_signals(settings->signals);
  ignore_file_size_signal();
  if (words.size() > kHookWords.size() &&
      std::ranges::equal(kHookWords, words | std::views::take(kHookWords.size()))) {
    words.erase(words.begin(), words.begin() + kHookWords.size());
    const auto found = find_program(words[0]);
    if (!found) return report_exec_failure(words[0], found.error().code());
    path = *found;
    if (gains_rights(path)) {  // elsewhere its ld.so loads no audit library
      remove_hooks();
      Rank rank(path, std::move(words), settings.value_or(LaunchSettings()));
      return rank.become_unguided("setuid program");
    }
  }
  if (value && starts_ranks(path)) {
    ::setenv(kLaunchVariable, with_own_mark(value).c_str(), 1);
    const int error = execute({path, words, Environment().entries()});
    return report_exec_failure(words[0], error);
  }
#ifdef HEDDLE_WITH_JOBS
  if (settings && !settings->job.empty() && Environment().get("HEDDLE") != "off")
    return run_collected(std::string(value).substr(0, std::string_view(value).find(kSeparator)),
                         *settings, path, words);
#endif
  remove_hooks();
  const auto unguided = settings ? take_step_check(*settings) : std::string();
  Rank rank(path, std::move(words), settings.value_or(LaunchSettings()));
  std::string why = settings ? "" : "fs-launch is of another version";
  if (settings && !unguided.empty() && !(settings->image + settings->hold).empty()) {
    report(Error("", unguided, "this rank does not start"));  // check_step() ends the step
    return 126;
  }
  if (settings && !settings->hold.empty())
    hold_rank({settings->hold, settings->hold_exit, settings->hold_directory},
              rank_from_environment().value_or(0), job_size());
  const auto profile = take_profile(settings ? settings->profile : "");
  if (!profile) why = profile.error().message();
  if (!unguided.empty()) why = unguided;
  if (Environment().get("HEDDLE") == "off") why = "HEDDLE=off";
  if (settings && !settings->image.empty() && why != "HEDDLE=off")
    return rank.become_contained(profile);
  std::optional<Error> warning;
  if (why.empty()) {
    try {
      const auto reason = rank.become_guided();
      why = reason ? *reason : reason.error().message();
      // One line of the job where no report tells that its map has no effect.
      if (!reason && !settings->map.empty() && settings->quiet.empty() &&
          settings->reports.empty() && rank_from_environment().value_or(0) == 0)
        warning.emplace("", why, "ranks run unguided", "fs-launch --report counts them");
    } catch (const std::exception& error) {
      why = error.what();
    }
  }
  return rank.become_unguided(why, warning ? &*warning : nullptr);
}

}  // namespace heddle::launch
