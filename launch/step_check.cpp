// SPDX-License-Identifier: MIT
#include "launch/step_check.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <sstream>

#include "base/exit_code.hpp"
#include "base/find_program.hpp"
#include "base/launch/app_process.hpp"
#include "base/log.hpp"
#include "base/open_regular.hpp"
#include "base/paths.hpp"
#include "base/rank_mark.hpp"
#include "base/run_directory.hpp"
#include "base/run_program.hpp"
#include "base/temp_dir.hpp"
#include "base/trusted_path.hpp"
#include "base/try.hpp"
#include "fsgen/guided_environment.hpp"
#include "launch/allocation.hpp"
#include "launch/hooks.hpp"
#include "ship/job_directory.hpp"

namespace heddle::launch {
namespace {

using Words = std::vector<std::string>;

constexpr const char* kProgram = "heddle-srun-prolog";
constexpr std::chrono::seconds kAnswerTime{10};
constexpr std::size_t kLargestMark = 4096;
constexpr std::size_t kMostReaders = 65'536;  ///< of a mark

std::string variable(const char* name) {
  const char* value = std::getenv(name);
  return value ? value : "";
}

/// A requeued job counts its steps again.
std::string mark_name(const std::string& step) {
  return fmt::format("unguided.{}.{}", step, variable("SLURM_RESTART_COUNT"));
}

/// What srun would execute without heddle; empty: nothing.
std::string own_prolog(const LaunchSettings& settings) {
  if (!settings.prolog.empty()) return settings.prolog == "none" ? "" : settings.prolog;
  // SrunProlog, which the variable replaces.
  const auto scontrol = find_program("scontrol");
  if (!scontrol) return "";
  const auto shown = run_and_read(*scontrol, {"scontrol", "show", "config"},
                                  {.limit = kAnswerTime, .messages = Messages::dropped});
  std::istringstream lines(shown ? shown->out : "");
  for (std::string line; std::getline(lines, line);) {
    if (!line.starts_with("SrunProlog ")) continue;
    const auto at = line.find("= ");
    const auto value = at == line.npos ? "" : line.substr(at + 2);
    return value == "(null)" ? "" : value;
  }
  return "";
}

/// As srun does; a file that it cannot execute is none for it.
int become_own_prolog(const std::string& path, int argc, char** argv, const Environment& given) {
  if (path.empty() || ::access(path.c_str(), R_OK | X_OK) != 0) return exit_done;
  Words words{path};
  words.insert(words.end(), argv + 1, argv + argc);
  auto environment = given;
  environment.set(kPrologVariable, path);
  const int error = execute({path, words, environment.entries()});
  warn(Error::from_errno(path, "srun's prolog cannot be executed", error));
  return exit_done;
}

/// Of the step's job, all nodes. Result: the line that says why not.
Result<void> prepare_step(const LaunchSettings& settings, long count) {
  TRY(check_slurm_nodes(count));
  // sbcast does not copy to several jobs.
  if (settings.ship.empty() || count < 2 || het_components() > 1) return {};
  const auto shipped = ship_bundle(settings.map, settings.ship);
  if (!shipped) warn(shipped.error());
  return {};
}

Result<void> write_mark(const std::string& path, const std::string& mark, const std::string& why) {
  const auto directory = TRY(RunDirectory::open_at(path));
  TRY(check_trusted_directory(path));
  const Fd lock = TRY(directory.lock("sessions", kAnswerTime));
  const auto write = [&](const std::string& name, const std::string& text) -> Result<void> {
    const Fd file(::openat(directory.get(), name.c_str(),
                           O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC, 0600));
    if (!file) return fail_errno(path + "/" + name, "cannot be written");
    return write_all(file.get(), text, name);
  };
  TRY(write(ship::kSlurmMark, ""));
  return write(mark, why);
}

/// Of this step on this node, by Slurm's "2(x3),1". -1: not known, or of several components.
long tasks_here() {
  long node = std::strtol(variable("SLURM_NODEID").c_str(), nullptr, 10);
  std::istringstream parts(variable("SLURM_STEP_TASKS_PER_NODE"));
  for (std::string part; het_components() < 2 && std::getline(parts, part, ',');) {
    long tasks = -1, nodes = 1;
    (void)std::sscanf(part.c_str(), "%ld(x%ld)", &tasks, &nodes);
    if (node < nodes) return tasks;
    node -= nodes;
  }
  return -1;
}

/// When the step's last rank here has read it; and the directory, if that is all. A static or
/// setuid rank reads nothing: then the next fs-ship, or the epilog, removes both.
void remove_mark(const RunDirectory& directory, const std::string& mark) {
  const auto lock = directory.lock("sessions", kAnswerTime);
  directory.remove(mark);
  if (!lock) return;
  for (const auto& name : directory.names())
    if (name != "." && name != ".." && name != "locks" && name != ship::kSlurmMark) return;
  (void)remove_tree(directory.path());
}

/// Its ranks would run outside of the image, or would not be held. After a prolog that fails srun
/// still starts some; if it is killed none start, and its watcher ends the step, and the job if it
/// is srun's own.
int end_step() {
  const auto parent = ::getppid();
  const auto name = read_file(fmt::format("/proc/{}/comm", parent), 64);
  if (name && *name == "srun\n") ::kill(parent, SIGKILL);
  return exit_failure;
}

}  // namespace

void plan_step_check(LaunchSettings& settings, const std::string& engine, const std::string& id) {
  settings.step_check = "yes";
  settings.ship = engine;
  settings.bundle = id;
  const char* own = std::getenv(kPrologVariable);
  if (own) settings.prolog = *own ? own : "none";
}

void remove_step_check() {
  if (!is_step_check(variable(kPrologVariable))) return;
  const auto settings = decode(variable(kLaunchVariable));
  ::unsetenv(kPrologVariable);
  if (settings && !settings->prolog.empty()) ::setenv(kPrologVariable, settings->prolog.c_str(), 1);
  // srun sets it where it has a prolog.
  if (settings && (settings->prolog.empty() || settings->prolog == "none"))
    ::unsetenv("SLURM_SCRIPT_CONTEXT");
}

std::string step_check_program(const std::string& prefix) {
  return prefix + "/libexec/heddle/" + kProgram;
}

bool is_step_check(const std::string& program) { return base_name(program) == kProgram; }

int check_step(int argc, char** argv) {
  const Environment given;
  // Without fs-launch's variable, or with that of another version, nothing is checked.
  const auto settings = decode(variable(kLaunchVariable)).value_or(LaunchSettings{});
  const auto job = variable("SLURM_JOB_ID"), step = variable("SLURM_STEP_ID");
  const long count = std::strtol(variable("SLURM_NNODES").c_str(), nullptr, 10);
  // srun reports the first Ctrl-C only, and ends this program with itself.
  const auto earlier = ::signal(SIGINT, SIG_IGN);
  remove_hooks();
  if (!settings.step_check.empty() && !job.empty() && !step.empty() && count > 0 &&
      given.get("HEDDLE") != "off") {
    const bool is_needed = !settings.image.empty() || !settings.hold.empty();
    const auto done = prepare_step(settings, count);
    if (!done) {
      (void)run_on_slurm_nodes(count, {kMarkOption, step, done.error().message()});
      if (is_needed) {
        report(done.error());
        return end_step();
      }
      if (settings.quiet.empty())
        warn(Error("", done.error().message(), "the job runs without heddle", done.error().hint()));
    }
  }
  ::signal(SIGINT, earlier);
  return become_own_prolog(own_prolog(settings), argc, argv, given);
}

int mark_step(const std::string& step, const std::string& why) {
  const auto path = ship::job_directory(ship::kNodeDirectory, variable("SLURM_JOB_ID"));
  for (int attempt = 0;; ++attempt) {
    const auto done = write_mark(path, mark_name(step), why.substr(0, kLargestMark) + "\n");
    if (done) return exit_done;
    // The end of an earlier step may have removed the directory meanwhile.
    if (done.error().code() != ENOENT || attempt == 3) throw done.error();
  }
}

/// Of a directory in /tmp, where any user may make one of this name: another's is not used. The
/// worst is that the bundle is read where it is, and that the rank is guided though its step is
/// not.
std::string take_step_check(LaunchSettings& settings) {
  if (settings.step_check.empty()) return "";
  const auto directory =
      RunDirectory::find(ship::job_directory(ship::kNodeDirectory, variable("SLURM_JOB_ID")));
  if (!directory || !check_trusted_directory(directory->path())) return "";
  if (const auto path = ship::bundle_path(directory->path(), settings.bundle);
      !settings.bundle.empty() && ::access(path.c_str(), R_OK) == 0)
    settings.map = path;
  const auto mark = mark_name(variable("SLURM_STEP_ID"));
  const Fd file(::openat(directory->get(), mark.c_str(),
                         O_RDWR | O_APPEND | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
  if (!file) return "";
  const auto text = read_all(file.get(), mark, kLargestMark + kMostReaders).value_or("");
  const auto end = text.find('\n');
  // A byte for each rank that has read it; a task prolog is no task's process.
  const bool is_task = variable("SLURM_TASK_PID") == std::to_string(::getpid());
  struct stat status {};
  if (is_task && end != text.npos && write_all(file.get(), ".", mark) &&
      ::fstat(file.get(), &status) == 0 &&
      status.st_size == static_cast<off_t>(end) + 1 + tasks_here())
    remove_mark(*directory, mark);
  return end == 0 || end == text.npos ? "another node of the job cannot guide"
                                      : text.substr(0, end);
}

}  // namespace heddle::launch
