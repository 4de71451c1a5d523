// SPDX-License-Identifier: MIT
// run, start, stop, source, stage: from the start of a job on this node to its archive.
#include "jobs/commands.hpp"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <optional>

#include "base/backoff.hpp"
#include "base/child.hpp"
#include "base/command_line.hpp"
#include "base/escape.hpp"
#include "base/exit_code.hpp"
#include "base/find_program.hpp"
#include "base/launch/app_process.hpp"
#include "base/launch/rank.hpp"
#include "base/log.hpp"
#include "base/output_file.hpp"
#include "base/run_main.hpp"
#include "base/try.hpp"
#include "jobs/archive.hpp"
#include "jobs/collate.hpp"
#include "jobs/collector/record_format.hpp"
#include "jobs/metadata.hpp"
#include "jobs/own_use.hpp"
#include "jobs/spool.hpp"

extern char** environ;

namespace heddle::jobs {
namespace {

using nlohmann::json;
using Words = std::vector<std::string>;
using Variables = std::vector<std::pair<std::string, std::string>>;

constexpr std::string_view kEnding = ".tar.gz";  // of archives

struct Options {
  std::string jobid, name, launch;
  Collecting what;
  std::string to;  ///< empty: the working directory, or the one of a job that is left
  Words annotations;
  std::string shell;
  int exitcode = -1;
  bool epmt = false;
  bool strict = false;
  bool keep = false;
  bool left = false;
  bool quiet = false;
  bool slurm = false;
};

void add_job(CLI::App& app, Options& o) {
  set_usage(app, "");
  app.add_option("--jobid", o.jobid, "The job (default: SLURM_JOB_ID, PBS_JOBID, or this session)")
      ->type_name("ID");
}

void add_name(CLI::App& app, Options& o, const std::string& otherwise) {
  app.add_option("--name", o.name,
                 "The job's name (default: SLURM_JOB_NAME, PBS_JOBNAME" + otherwise + ")")
      ->type_name("NAME");
}

void add_what(CLI::App& app, Options& o) {
  add_choice<std::string>(app, "--argv", o.what.argv,
                          {{"full", "full"}, {"exe", "exe"}, {"none", "none"}},
                          "Keep the arguments (default), the program's path only, or neither");
  app.add_flag("--lookups", o.what.lookups,
               "Count the paths that ld.so tries and misses (LD_AUDIT)");
  app.add_flag("--perf", o.what.perf, "Count software events of perf_event_open(2)");
}

void add_annotations(CLI::App& app, Options& o) {
  const auto look = [](const std::string& text) -> std::string {
    const auto equals = text.find('=');
    return equals == text.npos || equals == 0 ? "'" + text + "' is not KEY=VALUE" : "";
  };
  app.add_option("--annotate", o.annotations, "An annotation of the job (repeatable)")
      ->type_name("KEY=VALUE")
      ->check(CLI::Validator(look, ""))
      ->allow_extra_args(false);
}

int parse(CLI::App& app, int argc, char** argv) {
  forbid_empty_values(app);
  return parse_options(app, Words(argv + 1, argv + argc));
}

Spool spool_of(const Options& o) { return Spool::at(value_or_throw(job_id(o.jobid))); }

std::string archive_directory(const Options& o) {
  const std::string directory = o.to.empty() ? "." : o.to;
  std::error_code failed;  // the working directory may be gone
  auto out = std::filesystem::absolute(directory, failed).lexically_normal().string();
  if (failed) return directory;
  if (out.size() > 1 && out.ends_with('/')) out.pop_back();
  return out;
}

json new_job(const Spool& spool, const Options& o) {
  auto job = begin_metadata(spool.jobid());
  if (!o.name.empty()) job["jobname"] = to_json_text(o.name);
  if (!o.launch.empty()) job["launch"] = to_json_text(o.launch);
  for (const auto& text : o.annotations) {
    const auto equals = text.find('=');
    job["annotations"][text.substr(0, equals)] = text.substr(equals + 1);
  }
  job["collector"] = {{"version", HEDDLE_VERSION},
                      {"argv", o.what.argv},
                      {"lookups", o.what.lookups},
                      {"perf_on", o.what.perf}};
  job["to"] = archive_directory(o);
  return job;
}

/// What `command` of a job in a state where it has nothing to do answers.
int already(const Options& o, const Spool& spool, const char* what) {
  const Error error(spool.jobid(), what, "");
  if (o.strict) {
    report(error);
    return exit_no;
  }
  warn(error);
  return exit_done;
}

void stop_job(const Spool& spool, json& job) {
  end_metadata(job);
  value_or_throw(spool.write(job));
}

/// What is to be said of records that the collector could not write, or that are damaged.
std::optional<Error> lost_records(const Spool& spool, const Collated& collated) {
  struct stat st {};
  const bool unwritten =
      ::stat(spool.records().c_str(), &st) == 0 && (st.st_mode & 0777U) == kLostMode;
  if (!unwritten && collated.damaged == 0) return std::nullopt;
  struct statvfs room {};
  const bool is_full = unwritten && ::statvfs(spool.directory().c_str(), &room) == 0 &&
                       room.f_bavail * room.f_frsize < kMostRecord;
  return Error(spool.directory(), "records of processes were lost",
               is_full     ? "the file system is full"
               : unwritten ? "they could not be written"
                           : "they are damaged");
}

/// `left`: the job was killed, and this is no process of it.
std::string stage_job(const Spool& spool, json& job, const Options& o, bool left = false) {
  auto collated = value_or_throw(collate(spool.records()));
  const auto argv = job["collector"].value("argv", "full");
  for (auto& row : collated.processes) {
    if (argv != "full") row.args.clear();
    if (argv == "none") row.path = row.path.substr(row.path.rfind('/') + 1);
    mask_arguments(row.args);
  }
  auto directory = archive_directory(o);
  if (left && o.to.empty()) directory = job.value("to", directory);
  job.erase("to");
  job.erase("unwritten");
  job.erase("warned");
  if (left && !job.contains("stop")) {
    auto& stop = job["stop"] = job.value("start", std::int64_t{0});
    for (const auto& row : collated.processes)
      stop = std::max(stop.get<std::int64_t>(), row.finish.value_or(row.start));
    job["collector"]["left"] = true;
    job.erase("run");
  }
  auto& collector = job["collector"];
  collector["records"] = collated.records;
  collector["damaged"] = collated.damaged;
  collector["processes"] = collated.processes.size();
  collector["partial"] = collated.partial;
  const auto lost = lost_records(spool, collated);
  if (lost) collector["lost"] = true;
  if (collector.value("perf_on", false))
    collector["perf"] = collated.perf_error ? std::strerror(collated.perf_error) : "counted";
  const auto path = write_archive(directory, job, collated, o.epmt ? Layout::epmt : Layout::ours);
  if (!path) {
    const int code = path.error().code();
    throw Error::with_code(
        code, directory, "cannot write the job's archive",
        code == 0 || code == EPERM ? path.error().message() : std::strerror(code),
        "fs-job stage --left --jobid " + spool.jobid() + " --to DIR");
  }
  if (lost) warn(*lost);
  value_or_throw(spool.remove());
  return *path;
}

/// What is no part of a new job of its id: one that was killed and requeued, and one whose last
/// fs-job run could not write its archive. Writes that archive, unless an fs-job run of it still
/// holds `users`.
bool stage_killed(const Spool& spool, const Fd& users, json job, const Options& o) {
  if (job.is_null() ||
      (!job.value("unwritten", false) && job.value("restart", std::int64_t{0}) >= restart_count()))
    return false;
  try {
    if (::flock(users.get(), LOCK_EX | LOCK_NB) != 0) return false;
    (void)stage_job(spool, job, o, true);
    return true;
  } catch (const Error& error) {
    if (!job.value("warned", false)) warn(error);
    return false;
  }
}

/// For commands that processes of a job start with, so that no record of theirs is with the killed
/// one's.
void stage_killed(const Spool& spool, const Options& o) {
  const auto lock = spool.lock();
  if (!lock) return;
  auto job = spool.read();
  const auto users = open_file(spool.directory() + "/users", O_RDWR | O_CREAT | O_NOFOLLOW, 0600);
  if (job && users) (void)stage_killed(spool, *users, *job, o);
}

// source

std::string quoted(const std::string& text, const std::string& shell) {
  if (shell == "fish") return quote_for_fish(text);
  std::string out;
  for (const char c : quote_for_shell(text)) {
    if (shell == "csh" && c == '!') out += '\\';
    out += c;
  }
  return out;
}

/// Functions of `shell` that set and restore the variables; it is to eval them.
std::string shell_code(const std::string& shell, const Variables& variables) {
  const bool is_csh = shell == "csh";
  const bool is_fish = shell == "fish";
  std::string set, restore;
  for (const auto& [name, value] : variables) {
    const char* before = std::getenv(name.c_str());
    const auto assign = [&](const std::string& to) {
      const auto* command = is_csh ? "setenv " : is_fish ? "set -gx " : "export ";
      return command + name + (is_csh || is_fish ? " " : "=") + quoted(to, shell) + "; ";
    };
    set += assign(value);
    restore += before    ? assign(before)
               : is_csh  ? "unsetenv " + name + "; "
               : is_fish ? "set -e " + name + "; "
                         : "unset " + name + "; ";
  }
  if (is_csh) {
    const auto alias = [](const std::string& name, const std::string& body) {
      // An alias puts its arguments in the place of ! once more.
      return "alias " + name + " " + quoted(body, "csh") + "; ";
    };
    return alias("fs_job_instrument", set) + alias("fs_job_uninstrument", restore) + set + "\n";
  }
  const auto function = [&](const std::string& name, const std::string& body) {
    return is_fish ? "function " + name + "; " + body + "end; " : name + "() { " + body + "}; ";
  };
  return function("fs_job_instrument", set) + function("fs_job_uninstrument", restore) +
         "fs_job_instrument\n";
}

// run

/// A command without heddle, since a failing collector never fails a job.
int run_plain(const Words& command) {
  const auto path = find_program(command[0]);
  const int error = path ? execute({*path, command, own_environment()}) : path.error().code();
  return report_exec_failure(command[0], error);
}

/// Before the command runs, which may take days.
void check_results(const Spool& spool, const std::string& directory) {
  if (::access(directory.c_str(), W_OK | X_OK) == 0) return;
  warn(Error::from_errno(
      directory, "the job's archive cannot be written here", errno,
      "when the command has ended: fs-job stage --left --jobid " + spool.jobid() + " --to DIR"));
}

/// The job of `fs-job run`s: the first creates it, the last one to leave stages it.
class RunJob {
 public:
  static Result<RunJob> join(const Options& o) {
    const std::string jobid = TRY(job_id(o.jobid));
    Spool spool = Spool::at(jobid);
    for (int attempt = 0; attempt < 100; ++attempt) {
      // At any moment the last one may stage it, and remove the directory.
      if (const auto created = spool.create(); !created && created.error().code() != ENOENT)
        return fail(created.error());
      const auto lock = spool.lock();
      if (!lock) continue;
      const std::string users = spool.directory() + "/users";
      auto opened = open_file(users, O_RDWR | O_CREAT | O_NOFOLLOW, 0600);
      if (!opened && opened.error().code() == ENOENT) continue;
      Fd fd = TRY(std::move(opened));
      while (::flock(fd.get(), LOCK_SH) != 0 && errno == EINTR) {
      }
      struct stat st {
      }, there{};
      if (::fstat(fd.get(), &st) != 0 || ::stat(users.c_str(), &there) != 0 ||
          st.st_ino != there.st_ino || ::access(spool.records().c_str(), F_OK) != 0)
        continue;
      json job = TRY(spool.read());
      if (stage_killed(spool, fd, job, o)) continue;
      (void)::flock(fd.get(), LOCK_SH);
      if (job.is_null()) {
        check_results(spool, archive_directory(o));
        job = new_job(spool, o);
        job["run"] = true;
        // Of several nodes each has another start: submit merges what overlaps.
        if (!job.contains("job_start") && job["hosts"].size() == 1) job["job_start"] = job["start"];
        if (auto written = spool.write(job); !written) {
          if (::flock(fd.get(), LOCK_EX | LOCK_NB) == 0) (void)spool.remove();
          return fail(std::move(written.error()));
        }
      }
      return RunJob(std::move(spool), std::move(fd), std::move(job));
    }
    return fail(jobid, "cannot join the job", "it ends again and again");
  }

  const Spool& spool() const { return spool_; }
  const json& job() const { return job_; }

  /// Empty: others still run, or `fs-job stop` is to come.
  std::string leave(const Options& o, AppEnd end) {
    const auto lock = value_or_throw(spool_.lock());
    auto job = value_or_throw(spool_.read());
    if (job.is_null() || !(job.value("run", false) || job.value("unwritten", false))) return {};
    // Of the first that failed, if any did.
    const bool is_kept = job.value("exitcode", 0) == 0;
    if (is_kept) job["exitcode"] = end.status, job["exitsignal"] = end.signal;
    if (::flock(users_.get(), LOCK_EX | LOCK_NB) != 0) {
      if (is_kept && end.status != 0) value_or_throw(spool_.write(job));
      return {};
    }
    job.erase("run");
    job["unwritten"] = true;
    end_metadata(job);
    // For `stage`, if no archive can be written; the spool may be full, and the archive's place
    // not.
    (void)spool_.write(job);
    try {
      json staged = job;
      return stage_job(spool_, staged, o);
    } catch (const Error&) {
      // Each command that ends as the last one for now, as ranks do, tries again.
      if (std::exchange(job["warned"], true) == true) return {};
      (void)spool_.write(job);
      throw;
    }
  }

 private:
  RunJob(Spool spool, Fd users, json job)
      : spool_(std::move(spool)), users_(std::move(users)), job_(std::move(job)) {}
  Spool spool_;
  Fd users_;
  json job_;
};

/// Appends a record, as the collector does.
void append(const Spool& spool, std::string_view record) {
  const auto fd = open_file(spool.records(), O_WRONLY | O_APPEND);
  if (fd && !write_all(fd->get(), record, "records")) (void)::fchmod(fd->get(), kLostMode);
}

/// The start of the command itself: the collector is not in it if it is static or setuid.
void append_start(const Spool& spool, const Collecting& what, pid_t pid, std::int64_t start,
                  const std::string& path, const Words& command) {
  std::error_code failed;
  // fs-launch's agent, which becomes the rank.
  if (std::filesystem::equivalent(path, "/proc/self/exe", failed)) return;
  StartBody body{};
  body.failed_lookups = body.rank = body.ranks = -1;
  body.ppid = ::getpid();
  body.pgid = ::getpgid(pid);
  body.sid = ::getsid(pid);
  append(spool, foreign_start(what.argv == "full" ? 'f' : 'n', pid, start, body, path, command));
}

/// The record of the command itself, which this process waited for.
void append_reaped(const Spool& spool, pid_t pid, AppEnd end) {
  rusage usage{};
  ::getrusage(RUSAGE_CHILDREN, &usage);
  struct {
    RecordHeader header;
    ReapedBody body;
  } record{};
  record.header = {kRecordMagic, sizeof record, RecordType::reaped, 0, pid, 0, 0};
  const auto us = [](const timeval& time) {
    return time.tv_sec * std::int64_t{1'000'000} + time.tv_usec;
  };
  auto& body = record.body;
  body.time = now_us();
  body.parent = ::getpid();
  body.status = end.signal ? end.signal : end.status << 8;  // as wait(2) has it
  body.usage = {us(usage.ru_utime), us(usage.ru_stime), usage.ru_maxrss,
                usage.ru_minflt,    usage.ru_majflt,    usage.ru_inblock,
                usage.ru_oublock,   usage.ru_nvcsw,     usage.ru_nivcsw};
  append(spool, {reinterpret_cast<const char*>(&record), sizeof record});
}

AppEnd run_app(const RunJob& run, const Options& o, const Words& command,
               const Variables& variables) {
  const auto path = find_program(command[0]);
  if (!path) return {report_exec_failure(command[0], path.error().code())};
  Words environment;
  const auto is_set = [&](std::string_view entry) {
    for (const auto& [name, value] : variables)
      if (entry.starts_with(name) && entry.substr(name.size()).starts_with('=')) return true;
    return entry.starts_with("HEDDLE_JOB_START=");
  };
  for (auto& entry : own_environment())
    if (!is_set(entry)) environment.push_back(std::move(entry));
  for (const auto& [name, value] : variables) environment.push_back(name + "=" + value);
  if (run.job().contains("job_start"))
    environment.push_back("HEDDLE_JOB_START=" + run.job()["job_start"].dump());

  auto signals = value_or_throw(SignalRelay::start());
  auto app = value_or_throw(AppProcess::start({*path, command, environment}, {}, signals));
  const pid_t pid = app.pid();
  const auto start = now_us();
  if (const auto started = app.run(); !started)
    return {report_exec_failure(command[0], started.error().code())};
  append_start(run.spool(), o.what, pid, start, *path, command);
  const auto end = value_or_throw(app.wait(signals));
  append_reaped(run.spool(), pid, end);
  return end;
}

int run_collected(RunJob& run, const Options& o, const Words& command) {
  const auto variables = collecting_variables(run.spool(), o.what);
  if (!variables) {
    warn(variables.error());
    return run_plain(command);
  }
  const auto end = run_app(run, o, command, *variables);
  try {
    const auto archive = run.leave(o, end);
    const SigpipeHeld held;
    if (!archive.empty() && !o.quiet) say(archive);
  } catch (const Error& error) {
    warn(error);
  }
  return end_like(end);
}

}  // namespace

int run_command(int argc, char** argv) {
  Options o;
  CLI::App app("Run a command; write the archive of what it and its children did.", "fs-job run");
  add_job(app, o);
  set_usage(app, "fs-job run [OPTIONS] [--] COMMAND ARGS...");
  add_name(app, o, ", or COMMAND's");
  app.add_option("--launch", o.launch, "The mark of the fs-launch that calls")->group("");
  add_what(app, o);
  app.add_option("--to", o.to, "Write the archive into this directory (default: .)")
      ->type_name("DIR");
  add_annotations(app, o);
  app.add_flag("--epmt", o.epmt, "Write epmt's layout");
  app.add_flag("-q,--quiet", o.quiet, "Do not print the archive's path to stderr");
  forbid_empty_values(app);
  auto split = split_command_line(app, argc, argv);
  if (const int status = parse_options(app, std::move(split.options)); status >= 0) return status;
  if (split.command.empty()) return usage_error("fs-job run", "no command given");
  if (o.name.empty() && scheduled_name().empty())
    o.name = std::filesystem::path(split.command[0]).filename();
  auto run = RunJob::join(o);
  if (!run) {
    // Of a node among others.
    warn(Error(rank_from_environment() ? host_name() : "", run.error().message(),
               "what this command does is not collected", run.error().hint()));
    return run_plain(split.command);
  }
  return run_collected(*run, o, split.command);
}

int start_command(int argc, char** argv) {
  Options o;
  CLI::App app("Begin to collect a job on this node.", "fs-job start");
  add_job(app, o);
  add_name(app, o, "");
  add_what(app, o);
  add_annotations(app, o);
  app.add_flag("-e,--error", o.strict, "Fail if the job was started already");
  if (const int status = parse(app, argc, argv); status >= 0) return status;
  const auto spool = spool_of(o);
  if (const char* to = std::getenv("HEDDLE_JOB_TO")) o.to = to;
  const auto job = new_job(spool, o);
  stage_killed(spool, o);
  value_or_throw(spool.create());
  const auto lock = value_or_throw(spool.lock());
  if (const auto there = value_or_throw(spool.read()); !there.is_null())
    return already(
        o, spool,
        there.contains("stop") ? "the job was stopped already" : "the job was started already");
  value_or_throw(spool.write(job));
  return exit_done;
}

int stop_command(int argc, char** argv) {
  Options o;
  CLI::App app("End the job that fs-job start began.", "fs-job stop");
  add_job(app, o);
  app.add_option("--exit", o.exitcode, "The job's exit status")
      ->type_name("N")
      ->check(number_from(0, 255));
  app.add_flag("-e,--error", o.strict, "Fail if the job was stopped already");
  if (const int status = parse(app, argc, argv); status >= 0) return status;
  const auto spool = spool_of(o);
  if (value_or_throw(spool.read()).is_null())
    throw Error(spool.jobid(), "cannot stop the job", "it was not started", "fs-job start");
  const auto lock = value_or_throw(spool.lock());
  auto job = value_or_throw(spool.read());
  if (job.is_null()) throw Error(spool.jobid(), "cannot stop the job", "it was staged meanwhile");
  if (job.contains("stop")) return already(o, spool, "the job was stopped already");
  if (o.exitcode >= 0) job["exitcode"] = o.exitcode;
  stop_job(spool, job);
  return exit_done;
}

namespace {

/// The archive's path; empty: there is nothing to stage; nullopt: the job is not over. `of_runs`:
/// only jobs that `fs-job run` began.
std::optional<std::string> stage_left_one(const std::string& id, const Options& o, bool of_runs) {
  const Spool spool = Spool::at(id);
  const auto lock = spool.lock();
  if (!lock) return "";
  auto job = value_or_throw(spool.read());
  if (job.is_null()) return "";
  if (of_runs && !job.value("run", false) && !job.value("unwritten", false)) return "";
  // Held by each fs-job run.
  const auto users = open_file(spool.directory() + "/users", O_RDWR | O_NOFOLLOW);
  if (users && ::flock(users->get(), LOCK_EX | LOCK_NB) != 0) return std::nullopt;
  if (o.jobid.empty() && !job.value("unwritten", false)) {
    // A job that was stopped may be about to be staged by what stopped it.
    constexpr std::int64_t kHour = 3'600'000'000;
    if (job.contains("stop") ? job.value("stop", std::int64_t{0}) > now_us() - kHour
                             : !job.value("run", false))
      return std::nullopt;
  }
  return stage_job(spool, job, o, true);
}

int stage_left(const Options& o) {
  int status = exit_done;
  const auto ids = o.jobid.empty() ? Spool::ids() : Words{value_or_throw(job_id(o.jobid))};
  for (const auto& id : ids) try {
      const auto archive = stage_left_one(id, o, false).value_or("");
      if (!archive.empty()) value_or_throw(write_all(STDOUT_FILENO, archive + "\n", "stdout"));
    } catch (const Error& error) {
      report(error);
      status = exit_failure;
    }
  return status;
}

}  // namespace

std::vector<std::string> jobs_of_launch(const std::string& launch) {
  std::vector<std::string> out;
  for (auto& id : Spool::ids())
    if (const auto job = Spool::at(id).read();
        job && job->is_object() && job->value("launch", json()) == launch)
      out.push_back(std::move(id));
  return out;
}

std::set<std::string> archives_in(const std::string& directory) {
  std::set<std::string> out;
  std::error_code failed;
  for (std::filesystem::directory_iterator at(directory, failed), end; !failed && at != end;
       at.increment(failed))
    if (auto name = at->path().filename().string(); name.ends_with(kEnding) && name[0] != '.')
      out.insert(std::move(name));
  return out;
}

std::set<std::string> archived_hosts(const std::string& jobid, const std::string& directory) {
  std::set<std::string> out;
  for (auto name : archives_in(directory)) {
    if (!name.starts_with(jobid + "-")) continue;
    name.resize(name.size() - kEnding.size());
    // A host's second one has a number.
    const auto dot = name.find_last_not_of("0123456789");
    if (dot != name.npos && name[dot] == '.') name.resize(dot);
    out.insert(name.substr(jobid.size() + 1));
  }
  return out;
}

Result<bool> stage_killed_job(const std::string& jobid, std::chrono::milliseconds limit) {
  Options o;
  o.jobid = jobid;
  try {
    Backoff pauses(std::chrono::milliseconds(10), std::chrono::milliseconds(100));
    const auto end = std::chrono::steady_clock::now() + limit;
    for (;;) {
      if (stage_left_one(jobid, o, true) || !pauses.sleep_before(end)) return true;
    }
  } catch (const Error& error) {
    const auto job = Spool::at(jobid).read();
    if (job && job->value("warned", false)) return false;
    return fail(error);
  } catch (const std::exception& error) {
    return fail(jobid, "cannot write the job's archive", error.what());
  }
}

int stage_command(int argc, char** argv) {
  Options o;
  CLI::App app("Write the archive of a job that was stopped, print its path, and forget the job.",
               "fs-job stage");
  add_job(app, o);
  app.add_option("--to", o.to, "Write the archive into this directory (default: .)")
      ->type_name("DIR");
  app.add_flag("--epmt", o.epmt, "Write epmt's layout");
  app.add_flag("--left", o.left,
               "Of all jobs that were killed or stopped, each into its own directory");
  if (const int status = parse(app, argc, argv); status >= 0) return status;
  if (o.left) return stage_left(o);
  const auto spool = spool_of(o);
  if (value_or_throw(spool.read()).is_null())
    throw Error(spool.jobid(), "cannot stage the job", "it was not started", "fs-job start");
  const auto lock = value_or_throw(spool.lock());
  auto job = value_or_throw(spool.read());
  if (job.is_null()) throw Error(spool.jobid(), "cannot stage the job", "it was staged meanwhile");
  if (!job.contains("stop"))
    throw Error(spool.jobid(), "cannot stage the job", "it was not stopped", "fs-job stop");
  value_or_throw(write_all(STDOUT_FILENO, stage_job(spool, job, o) + "\n", "stdout"));
  return exit_done;
}

int source_command(int argc, char** argv) {
  Options o;
  CLI::App app(
      "Print functions for `eval`: fs_job_instrument, fs_job_uninstrument; and call the first.",
      "fs-job source");
  add_job(app, o);
  add_what(app, o);
  add_choice<std::string>(
      app, "--shell", o.shell,
      {{"sh", "sh"}, {"bash", "sh"}, {"csh", "csh"}, {"tcsh", "csh"}, {"fish", "fish"}},
      "The shell (default: that of $SHELL)");
  app.add_flag("--slurm", o.slurm, "Print the lines of a Slurm task prolog instead");
  if (const int status = parse(app, argc, argv); status >= 0) return status;
  const auto spool = spool_of(o);
  stage_killed(spool, o);
  value_or_throw(spool.create());
  const auto variables = value_or_throw(collecting_variables(spool, o.what));
  std::string text;
  if (o.slurm) {
    for (const auto& [name, value] : variables)
      if (value.find('\n') == value.npos) text += "export " + name + "=" + value + "\n";
  } else {
    if (o.shell.empty()) {
      const char* shell = std::getenv("SHELL");
      const std::string name = shell ? shell : "";
      o.shell = name.ends_with("csh") ? "csh" : name.ends_with("/fish") ? "fish" : "sh";
    }
    text = shell_code(o.shell, variables);
  }
  value_or_throw(write_all(STDOUT_FILENO, text, "stdout"));
  return exit_done;
}

}  // namespace heddle::jobs
