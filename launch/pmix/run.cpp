// SPDX-License-Identifier: MIT
// Indirect launch: the user's launcher is started paused, and goes on when a tool has made its
// preparations. Three parts:
//   this process   starts the launcher as fs-launch does (stdio, signals and exit status are the
//                  launcher's), and never calls libpmix
//   a thread       carries out the steps below, runs the user's commands, ends the launcher when a
//                  step fails
//   the agent      a child process with libpmix, to which the launcher connects back: libpmix finds
//                  PMIX_LAUNCHER_RNDZ_URI in PMIx_server_init (of a launcher) or PMIx_tool_init
//                  (prun), fetches what is said here of the job, and blocks there until the event
//                  PMIX_DEBUGGER_RELEASE
// Steps are records of a socket pair, in the order of Step. A launcher without PMIx never connects
// back; the time limit ends it, so that no job runs without what was asked for it.

#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <future>
#include <map>
#include <nlohmann/json.hpp>

#include "base/channel.hpp"
#include "base/child.hpp"
#include "base/escape.hpp"
#include "base/exit_code.hpp"
#include "base/find_program.hpp"
#include "base/launch/app_process.hpp"
#include "base/log.hpp"
#include "base/run_program.hpp"
#include "base/try.hpp"
#include "launch/pmix/commands.hpp"
#include "launch/pmix/pmix.hpp"
#include "launch/pmix/server_address.hpp"

extern char** environ;

namespace heddle::pmix {
namespace {

enum class Step : std::uint8_t {
  prepared,   ///< from the agent; words: variables for the launcher
  connect,    ///< to the agent: the launcher runs
  connected,  ///< from the agent: it is paused
  release,    ///< to the agent
  stopped,    ///< from the agent: the ranks of words[0] are; the descriptor is their table
  go_on,      ///< to the agent: words[0]'s go on
  event,      ///< from the agent; words: its name, the job; number: status
  failed,     ///< from the agent
};
struct Message {
  Step step = Step::failed;
  std::vector<std::string> words;
  std::int64_t number = 0;
  Error error;
};
template <class Coder, class R>
requires std::same_as<std::remove_const_t<R>, Message>
void fields(Coder& coder, R& r) { coder(r.step, r.words, r.number, r.error); }

Message message(Step step, std::vector<std::string> words = {}) {
  Message out;
  out.step = step;
  out.words = std::move(words);
  return out;
}

/// This process's environment with `changes`, NAME=VALUE each.
std::vector<std::string> environment_with(std::vector<std::string> changes) {
  const auto name_of = [](std::string_view text) { return text.substr(0, text.find('=')); };
  const auto given = changes;
  for (auto& each : own_environment())
    if (std::ranges::none_of(given, [&](const auto& one) { return name_of(one) == name_of(each); }))
      changes.push_back(std::move(each));
  return changes;
}

// The agent

std::pair<std::string, std::string> split_variable(const std::string& text) {
  const auto equals = text.find('=');
  if (equals == 0 || equals == text.npos) throw Error(text, "is not NAME=VALUE");
  return {text.substr(0, equals), text.substr(equals + 1)};
}

/// What the launcher shall do with the job that it will start.
void add_directives(Infos& infos, const RunOptions& options) {
  // Not PMIX_PREPEND_ENVAR: PRRTE 3 carries it out before PMIX_SET_ENVAR, and loses the value that
  // the launcher's own environment has.
  std::map<std::string, std::string> variables;
  for (const auto& each : options.set) {
    const auto [name, value] = split_variable(each);
    variables[name] = value;
  }
  for (const auto& each : options.prepend) {
    const auto [name, value] = split_variable(each);
    const char* inherited = std::getenv(name.c_str());
    auto& whole = variables.try_emplace(name, inherited ? inherited : "").first->second;
    whole = whole.empty() ? value : value + ":" + whole;
  }
  for (const auto& [name, value] : variables) infos.variable(name, value);
  if (options.stop == "exec") infos.flag(PMIX_DEBUG_STOP_ON_EXEC);
  if (options.stop == "init") infos.flag(PMIX_DEBUG_STOP_IN_INIT);
  if (options.stop == "app") infos.flag(PMIX_DEBUG_STOP_IN_APP);
  // With a tool, PRRTE prints nothing itself.
  infos.flag(PMIX_FWD_STDOUT).flag(PMIX_FWD_STDERR);
  infos.flag(PMIX_NOTIFY_JOB_EVENTS);
  infos.flag(PMIX_NOTIFY_COMPLETION);
}

class Agent {
 public:
  Agent(const RunOptions& options, int socket) : options_(options), socket_(socket) {}
  Result<void> run();

 private:
  Result<std::vector<std::string>> prepare();
  Result<void> connect();
  Result<void> notify(const pmix_proc_t& target);
  Result<void> show_stopped(const std::string& name_space);
  Result<void> let_go(const std::string& name_space);
  Result<bool> handle(const Event& event);
  Result<Message> receive(Step step);
  /// libpmix's calls have no time limit: this process ends by SIGALRM.
  void limit(bool on) const { ::alarm(on ? static_cast<unsigned>(options_.seconds) + 5 : 0); }

  const RunOptions& options_;
  int socket_;
  pmix_proc_t self_{};
  pmix_proc_t launcher_{};
  Fd errors_;
  bool was_stopped_ = false;
  Events& events_ = *new Events;  // libpmix's threads outlive this object
};

Result<std::vector<std::string>> Agent::prepare() {
  Infos tool;
  tool.flag(PMIX_TOOL_DO_NOT_CONNECT).flag(PMIX_LAUNCHER);
  if (const auto status = PMIx_tool_init(&self_, tool.data(), tool.size()); !is_done(status))
    return fail_pmix("libpmix", "cannot start", status);
  pmix_value_t* uri = nullptr;
  if (const auto status = PMIx_Get(&self_, PMIX_MYSERVER_URI, nullptr, 0, &uri); !is_done(status))
    return fail_pmix("libpmix", "does not say where it listens", status);
  const auto own_uri = text_of(*uri);

  // The launcher is a job of one process, with a name of ours, and asks for the job's data.
  launcher_ = process_of(fmt::format("{}:1", self_.nspace), 0);
  Infos directives, job;
  add_directives(directives, options_);
  job.number(PMIX_JOB_SIZE, 1).number(PMIX_LOCAL_SIZE, 1).process(PMIX_PARENT_ID, self_);
  job.array(PMIX_LAUNCH_DIRECTIVES, directives);
  if (const auto status = PMIx_server_register_nspace(launcher_.nspace, 1, job.data(), job.size(),
                                                      nullptr, nullptr);
      !is_done(status))
    return fail_pmix("libpmix", "does not take the launcher's description", status);
  if (const auto status = PMIx_server_register_client(&launcher_, ::geteuid(), ::getegid(), nullptr,
                                                      nullptr, nullptr);
      !is_done(status))
    return fail_pmix("libpmix", "does not take the launcher's description", status);
  char** variables = nullptr;
  if (const auto status = PMIx_server_setup_fork(&launcher_, &variables); !is_done(status))
    return fail_pmix("libpmix", "does not describe the launcher's environment", status);
  std::vector<std::string> out;
  // The directories are this process's: the launcher has its own.
  for (char** each = variables; each && *each; ++each)
    if (std::string_view(*each).find("_TMPDIR=") == std::string_view::npos) out.emplace_back(*each);
  out.push_back(std::string("PMIX_LAUNCHER_RNDZ_URI=") + own_uri);
  out.push_back(std::string("PMIX_SERVER_NSPACE=") + launcher_.nspace);
  out.emplace_back("PMIX_SERVER_RANK=0");
  return out;
}

Result<void> Agent::connect() {
  Infos how;
  how.flag(PMIX_WAIT_FOR_CONNECTION).integer(PMIX_TIMEOUT, options_.seconds);
  if (const auto status = PMIx_tool_set_server(&launcher_, how.data(), how.size());
      !is_done(status))
    return fail(options_.command[0], "does not connect back as a PMIx launcher does",
                fmt::format("within {} s", options_.seconds),
                "launchers with PMIx 4 or newer do: prterun, prun, mpirun of Open MPI 5");
  // The second is registered with the launcher.
  TRY(events_.listen({PMIX_ERR_LOST_CONNECTION}));
  return events_.listen(
      {PMIX_EVENT_JOB_START, PMIX_LAUNCH_COMPLETE, PMIX_READY_FOR_DEBUG, PMIX_EVENT_JOB_END});
}

Result<void> Agent::notify(const pmix_proc_t& target) {
  Infos how;
  how.flag(PMIX_EVENT_NON_DEFAULT).process(PMIX_EVENT_CUSTOM_RANGE, target);
  const auto status = PMIx_Notify_event(PMIX_DEBUGGER_RELEASE, &self_, PMIX_RANGE_CUSTOM,
                                        how.data(), how.size(), nullptr, nullptr);
  if (!is_done(status)) return fail_pmix(options_.command[0], "cannot be released", status);
  return {};
}

Result<void> Agent::show_stopped(const std::string& name_space) {
  const auto ranks = TRY(query_ranks(options_.command[0], name_space));
  const Fd table = TRY(memory_file(to_json(name_space, ranks)));
  const int fds[] = {table.get()};
  return send_record(socket_, message(Step::stopped, {name_space}), fds);
}

Result<void> Agent::let_go(const std::string& name_space) {
  const auto all = process_of(name_space, PMIX_RANK_WILDCARD);
  if (options_.stop != "exec") return notify(all);
  Infos how;
  how.integer(PMIX_JOB_CTRL_SIGNAL, SIGCONT);
  pmix_info_t* results = nullptr;
  std::size_t count = 0;
  const auto status = PMIx_Job_control(&all, 1, how.data(), how.size(), &results, &count);
  if (!is_done(status)) return fail_pmix(name_space, "the ranks cannot be continued", status);
  return {};
}

Result<Message> Agent::receive(Step step) {
  auto got = TRY(receive_record<Message>(socket_, kNoLimit));
  if (got.message.step != step) return fail_errno("", "unexpected step", EPROTO);
  return std::move(got.message);
}

/// false: the launcher has ended.
Result<bool> Agent::handle(const Event& event) {
  Message out = message(Step::event);
  out.number = event.status;
  switch (event.code) {
    case PMIX_ERR_LOST_CONNECTION:
      return false;
    case PMIX_EVENT_JOB_START:
      out.words = {"job-start", event.name_space};
      break;
    case PMIX_LAUNCH_COMPLETE:
      out.words = {"launch-complete", event.name_space};
      break;
    case PMIX_READY_FOR_DEBUG:
      out.words = {"ready-for-debug", event.name_space};
      break;
    case PMIX_EVENT_JOB_END:
      out.words = {"job-end", event.name_space};
      break;
    default:
      return true;
  }
  TRY(send_record(socket_, out));
  // Once: it is one job, and how often a peer says so is the peer's to choose.
  if (event.code != PMIX_READY_FOR_DEBUG || options_.stop.empty() ||
      std::exchange(was_stopped_, true))
    return true;
  limit(true);
  TRY(show_stopped(event.name_space));
  limit(false);
  (void)TRY(receive(Step::go_on));
  limit(true);
  TRY(let_go(event.name_space));
  limit(false);
  return true;
}

Result<void> Agent::run() {
  errors_ = silence_libpmix();
  limit(true);
  auto variables = TRY(prepare());
  TRY(send_record(socket_, message(Step::prepared, std::move(variables))));
  limit(false);
  (void)TRY(receive(Step::connect));
  limit(true);
  TRY(connect());
  limit(false);
  TRY(send_record(socket_, message(Step::connected)));
  (void)TRY(receive(Step::release));
  limit(true);
  TRY(notify(launcher_));
  limit(false);
  // From here on the ranks' errors are written there.
  ::dup2(errors_.get(), STDERR_FILENO);
  for (;;)
    if (const auto event = events_.wait(std::chrono::hours(1)))
      if (!TRY(handle(*event))) return {};
}

int run_agent(const RunOptions& options, int socket) {
  leave_pmix_job();
  limit_memory();
  silence_libevent();
  // A terminal's: the launcher decides what becomes of the job. This process ends with its parent.
  for (const int number : {SIGINT, SIGQUIT, SIGHUP, SIGTERM}) ::signal(number, SIG_IGN);
  // libpmix keeps the end of the connection to itself for so many seconds.
  ::setenv("PMIX_MCA_pmix_event_caching_window", "0", 0);
  Agent agent(options, socket);
  const auto done = agent.run();
  if (done) {
    (void)PMIx_tool_finalize();  // writes what it still has of the ranks' output
    return exit_done;
  }
  Message out = message(Step::failed);
  out.error = shortened(done.error());
  (void)send_record(socket, out);
  return exit_failure;
}

// The thread beside the launcher

/// Runs the steps. Made before the launcher starts, since a thread must not exist at a fork.
class Steps {
 public:
  Steps(const RunOptions& options, Child agent, Fd socket)
      : options_(options), agent_(std::move(agent)), socket_(std::move(socket)) {}

  /// The launcher's variables.
  Result<std::vector<std::string>> prepare();
  /// In a thread: returns when the launcher has ended, or has been ended because a step failed.
  void run(pid_t launcher);
  /// After the launcher's end: waits for the agent's last events and for `thread`, which runs
  /// run(), and ends the user's command.
  void finish(const std::future<void>& thread);
  /// A launcher that ends at once with its job may not get to sending the event.
  void log_end(int status) {
    if (job_.empty()) return;
    auto end = message(Step::event, {"job-end", job_});
    end.number = status;
    (void)log_event(end);
  }
  const std::optional<Error>& error() const { return error_; }

 private:
  Result<void> carry_out();
  Result<Received<Message>> receive(std::chrono::milliseconds limit);
  Result<void> run_command(const std::string& command, std::vector<std::string> variables,
                           int table);
  Result<void> handle(const Received<Message>& got);
  Result<void> log_event(const Message& event);
  /// The agent is silent, or was killed by its alarm or by what the launcher sent: the same for the
  /// user.
  Error lost(const char* why) const {
    return Error(options_.command[0], "the PMIx connection to the launcher has failed", why);
  }

  const RunOptions& options_;
  Child agent_;
  Fd socket_;
  Fd events_;
  std::string job_;  ///< its namespace, once it has started and until it has ended
  std::optional<Error> error_;
  std::atomic<pid_t> command_ = -1;
  std::atomic<bool> connected_ = false, ended_ = false;
};

Result<Received<Message>> Steps::receive(std::chrono::milliseconds limit) {
  auto got = receive_record<Message>(socket_.get(), limit);
  if (got && got->message.step == Step::failed) return fail(got->message.error);
  if (got) return std::move(*got);
  return fail(
      lost(got.error().code() == ETIMEDOUT ? "no answer in time" : "libpmix's process has ended"));
}

Result<std::vector<std::string>> Steps::prepare() {
  if (!options_.events.empty())
    events_ = TRY(open_file(options_.events, O_WRONLY | O_CREAT | O_APPEND, 0644));
  auto got = TRY(receive(std::chrono::seconds(options_.seconds)));
  return std::move(got.message.words);
}

Result<void> Steps::log_event(const Message& event) {
  if (!events_ || event.words.size() < 2) return {};
  job_ = event.words[0] == "job-end" ? "" : event.words[1];
  nlohmann::json line = {{"event", event.words[0]}, {"namespace", to_json_text(event.words[1])}};
  if (event.words[0] == "job-end") line["status"] = event.number;
  return write_all(events_.get(), line.dump() + "\n", options_.events);
}

Result<void> Steps::run_command(const std::string& command, std::vector<std::string> variables,
                                int table) {
  SpawnOptions spawn_options;
  spawn_options.environment = environment_with(std::move(variables));
  if (table >= 0) spawn_options.fds = {{table, 3}};
  auto child = TRY(spawn("/bin/sh", {"sh", "-c", command}, spawn_options));
  command_ = child.pid();
  const int status = TRY(child.wait());
  command_ = -1;
  if (status == 0) return {};
  return fail(command, "failed, and the job with it", fmt::format("exit status {}", status));
}

Result<void> Steps::handle(const Received<Message>& got) {
  const auto& message_in = got.message;
  if (message_in.step == Step::event) return log_event(message_in);
  if (message_in.step != Step::stopped || message_in.words.empty() || got.fds.size() != 1)
    return fail_errno("", "unexpected step", EPROTO);
  if (!options_.stopped.empty())
    TRY(run_command(
        options_.stopped,
        {"HEDDLE_PMIX_NAMESPACE=" + message_in.words[0], "HEDDLE_PMIX_RANKS=/proc/self/fd/3"},
        got.fds[0].get()));
  return send_record(socket_.get(), message(Step::go_on, {message_in.words[0]}));
}

Result<void> Steps::carry_out() {
  TRY(send_record(socket_.get(), message(Step::connect)));
  // The agent's own limit comes first.
  (void)TRY(receive(std::chrono::seconds(options_.seconds + 10)));
  connected_ = true;
  TRY(log_event(message(Step::event, {"launcher-waits", ""})));
  if (!options_.before.empty()) TRY(run_command(options_.before, {}, -1));
  TRY(send_record(socket_.get(), message(Step::release)));
  for (;;) {
    auto got = receive_record<Message>(socket_.get(), kNoLimit);
    // The agent ends by itself when the launcher's connection is closed.
    if (!got && got.error().code() == ECONNRESET) {
      const auto status = agent_.wait();
      if (status && *status == exit_done) return {};
    }
    if (!got) return fail(got.error());
    if (got->message.step == Step::failed) return fail(got->message.error);
    TRY(handle(*got));
  }
}

void Steps::run(pid_t launcher) {
  const Fd handle(static_cast<int>(::syscall(SYS_pidfd_open, launcher, 0)));
  const auto has_ended = [&](std::chrono::milliseconds limit) {
    return ended_ || wait_for_input(handle.get(), limit).value_or(false);
  };
  const auto done = carry_out();
  // It may have ended on its own a moment before, with a message and a status of its own.
  if (done || has_ended(std::chrono::milliseconds(500))) return;
  error_ = done.error();
  if (error_->code() == EPIPE || error_->code() == ECONNRESET)
    error_ = lost("libpmix's process has ended");
  // Open MPI 4's mpirun that waits for a tool ignores SIGTERM.
  for (const int number : {SIGTERM, SIGKILL}) {
    if (ended_) return;
    ::kill(launcher, number);  // not reaped yet, unless in this moment
    ::kill(launcher, SIGCONT);
    if (has_ended(std::chrono::seconds(5))) return;
  }
}

void Steps::finish(const std::future<void>& thread) {
  ended_ = true;
  const auto end_command = [&](int number) {
    if (const pid_t command = command_; command > 0) ::kill(command, number);
  };
  end_command(SIGTERM);
  // Before it has connected there is nothing to come.
  if (thread.wait_for(std::chrono::seconds(connected_ ? 2 : 0)) == std::future_status::ready)
    return;
  ::kill(agent_.pid(), SIGKILL);
  if (thread.wait_for(std::chrono::seconds(1)) == std::future_status::ready) return;
  end_command(SIGKILL);
  thread.wait();
}

}  // namespace

int run_launcher(const RunOptions& options) {
  const auto path = find_program(options.command[0]);
  if (!path) return report_exec_failure(options.command[0], path.error().code());
  value_or_throw(refuse_open_mpi_4(*path));
  for (const auto* list : {&options.set, &options.prepend})
    for (const auto& each : *list) (void)split_variable(each);

  auto signals = value_or_throw(SignalRelay::start());
  auto sockets = value_or_throw(make_socket_pair());
  ForkOptions fork_options;
  fork_options.keep = std::vector<int>{sockets.other.get()};
  fork_options.name = "pmix-agent";
  auto agent = value_or_throw(
      fork_child(fork_options, [&] { return run_agent(options, sockets.other.get()); }));
  sockets.other.reset();
  Steps steps(options, std::move(agent), std::move(sockets.one));
  const auto environment = environment_with(value_or_throw(steps.prepare()));

  auto app = value_or_throw(AppProcess::start({*path, options.command, environment}, {}, signals));
  if (auto started = app.run(); !started)
    return report_exec_failure(options.command[0], started.error().code());
  const auto thread = std::async(std::launch::async, [&] { steps.run(app.pid()); });
  const auto end = app.wait(signals);
  steps.finish(thread);
  if (end) steps.log_end(end->status);
  if (steps.error()) {
    report(*steps.error());
    return exit_failure;
  }
  return end_like(value_or_throw(end));
}

}  // namespace heddle::pmix
