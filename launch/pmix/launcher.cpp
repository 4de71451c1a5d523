// SPDX-License-Identifier: MIT
// A PMIx launcher for one node: the other half of run.cpp, and enough of a server for programs of
// any MPI that asks PMIx. Ranks keep this process's stdio, directory and process group. When one
// fails, all end.
//
// libpmix's own thread calls the functions of kModule, one at a time; they share `Job` with the
// main thread. They answer at once: PMIX_OPERATION_SUCCEEDED, since to call `done` from there
// blocks PMIx_Get of libpmix 4.2.

#include <fmt/format.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>

#include "base/child.hpp"
#include "base/exit_code.hpp"
#include "base/find_program.hpp"
#include "base/launch/rank.hpp"
#include "base/log.hpp"
#include "base/output_file.hpp"
#include "base/try.hpp"
#include "launch/pmix/commands.hpp"
#include "launch/pmix/pmix.hpp"

extern char** environ;

namespace heddle::pmix {
namespace {

struct LocalRank {
  std::atomic<pid_t> pid = -1;  ///< -1: has ended
  std::atomic<int> status = 0;
};

/// Handlers of signals read it too, so there is no lock.
struct Job {
  std::string name_space, host, program;
  std::vector<LocalRank> ranks;
  unsigned tools = 0;

  void signal(int number) const {
    for (const auto& rank : ranks)
      if (const pid_t pid = rank.pid; pid > 0) ::kill(pid, number);
  }
  /// SIGTERM, and after five seconds SIGKILL.
  void end() const {
    signal(SIGTERM);
    signal(SIGCONT);
    ::alarm(5);
  }
};
Job& job() {
  static Job& it = *new Job;  // libpmix's thread outlives main()
  return it;
}

/// Signals are the ranks'.
void on_signal(int number, siginfo_t* info, void*) {
  if (number == SIGALRM) {
    job().signal(SIGKILL);
  } else if (info->si_code != SI_KERNEL) {  // a terminal's reach the ranks by themselves
    job().signal(number);
    if (number != SIGUSR1 && number != SIGUSR2) job().signal(SIGCONT);
  }
}
constexpr int kSignals[] = {SIGALRM, SIGTERM, SIGINT, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2};

pmix_status_t on_connected(const pmix_proc_t*, void*, pmix_info_t[], std::size_t, pmix_op_cbfunc_t,
                           void*) {
  return PMIX_OPERATION_SUCCEEDED;
}
pmix_status_t on_finalized(const pmix_proc_t*, void*, pmix_op_cbfunc_t, void*) {
  return PMIX_OPERATION_SUCCEEDED;
}
pmix_status_t on_abort(const pmix_proc_t*, void*, int, const char[], pmix_proc_t[], std::size_t,
                       pmix_op_cbfunc_t, void*) {
  job().end();
  return PMIX_OPERATION_SUCCEEDED;
}
/// All ranks are here, so that what they have put is all there is.
pmix_status_t on_fence(const pmix_proc_t[], std::size_t, const pmix_info_t[], std::size_t,
                       char* data, std::size_t size, pmix_modex_cbfunc_t done, void* object) {
  done(PMIX_SUCCESS, data, size, object, std::free, data);
  return PMIX_SUCCESS;
}
pmix_status_t on_events(pmix_status_t*, std::size_t, const pmix_info_t[], std::size_t,
                        pmix_op_cbfunc_t, void*) {
  return PMIX_OPERATION_SUCCEEDED;
}
pmix_status_t on_no_events(pmix_status_t*, std::size_t, pmix_op_cbfunc_t, void*) {
  return PMIX_OPERATION_SUCCEEDED;
}
pmix_status_t on_notify(pmix_status_t, const pmix_proc_t*, pmix_data_range_t, pmix_info_t[],
                        std::size_t, pmix_op_cbfunc_t, void*) {
  return PMIX_OPERATION_SUCCEEDED;
}

/// Tools of this user only (over TCP a peer's claim is all that libpmix has). Others get no answer:
/// libpmix 4.2.2 does not survive a refusal, since it takes the tool's job from a list that it is
/// not in; and it does not say later whose a request is.
void on_tool(pmix_info_t* infos, std::size_t count, pmix_tool_connection_cbfunc_t done,
             void* object) {
  auto name = process_of(fmt::format("{}.tool{}", job().name_space, ++job().tools), 0);
  bool is_own = false;
  for (std::size_t i = 0; i < count; ++i) {
    const auto& value = infos[i].value;
    const auto is = [&](const char* key, pmix_data_type_t type) {
      return value.type == type && std::strncmp(infos[i].key, key, PMIX_MAX_KEYLEN) == 0;
    };
    if (is(PMIX_USERID, PMIX_UINT32)) is_own = value.data.uint32 == ::geteuid();
    if (is(PMIX_NSPACE, PMIX_STRING) && value.data.string)
      name = process_of(text_of(value), name.rank);
    if (is(PMIX_RANK, PMIX_PROC_RANK)) name.rank = value.data.rank;
  }
  if (is_own) done(PMIX_SUCCESS, &name, object);
}

void free_infos(void* infos) { delete static_cast<Infos*>(infos); }

/// The table as PMIx has it; libpmix copies it into the answer.
void add_table(Infos& out) {
  std::vector<pmix_proc_info_t> table;
  for (const auto& rank : job().ranks) {
    const pid_t pid = rank.pid;
    pmix_proc_info_t entry{};
    entry.proc = process_of(job().name_space, static_cast<pmix_rank_t>(table.size()));
    entry.hostname = job().host.data();
    entry.executable_name = job().program.data();
    entry.pid = std::max(pid, 0);
    entry.exit_code = rank.status;
    entry.state = pid > 0 ? PMIX_PROC_STATE_RUNNING : PMIX_PROC_STATE_TERMINATED;
    table.push_back(entry);
  }
  pmix_data_array_t array{PMIX_PROC_INFO, table.size(), table.data()};
  out.array(PMIX_QUERY_PROC_TABLE, array);
}

pmix_status_t on_query(pmix_proc_t*, pmix_query_t* queries, std::size_t count,
                       pmix_info_cbfunc_t done, void* object) {
  auto* out = new Infos;
  for (std::size_t i = 0; i < count; ++i) {
    bool other = false;
    for (std::size_t j = 0; j < queries[i].nqual; ++j)
      other =
          other || (std::strncmp(queries[i].qualifiers[j].key, PMIX_NSPACE, PMIX_MAX_KEYLEN) == 0 &&
                    text_of(queries[i].qualifiers[j].value) != job().name_space);
    for (char** key = queries[i].keys; key && *key; ++key) {
      const std::string_view wanted(*key);
      if (wanted == PMIX_QUERY_NAMESPACES)
        out->text(PMIX_QUERY_NAMESPACES, job().name_space);
      else if (wanted == PMIX_QUERY_PROC_TABLE && !other)
        add_table(*out);
    }
  }
  if (out->size() == 0) {
    delete out;
    return PMIX_ERR_NOT_FOUND;
  }
  done(PMIX_SUCCESS, out->data(), out->size(), object, free_infos, out);
  return PMIX_SUCCESS;
}

pmix_status_t on_control(const pmix_proc_t*, const pmix_proc_t targets[], std::size_t count,
                         const pmix_info_t orders[], std::size_t order_count, pmix_info_cbfunc_t,
                         void*) {
  for (std::size_t i = 0; i < count; ++i)
    if (job().name_space != text_of(targets[i].nspace)) return PMIX_ERR_NOT_FOUND;
  for (std::size_t i = 0; i < order_count; ++i) {
    if (std::strncmp(orders[i].key, PMIX_JOB_CTRL_SIGNAL, PMIX_MAX_KEYLEN) != 0 ||
        orders[i].value.type != PMIX_INT)
      return PMIX_ERR_NOT_SUPPORTED;
    // libpmix believes what a peer says of its user, so a tool may let ranks go on, and no more.
    if (orders[i].value.data.integer != SIGCONT) return PMIX_ERR_NOT_SUPPORTED;
    job().signal(SIGCONT);
  }
  return PMIX_OPERATION_SUCCEEDED;
}

pmix_server_module_t make_module() {
  pmix_server_module_t out{};
  out.client_connected2 = on_connected;
  out.client_finalized = on_finalized;
  out.abort = on_abort;
  out.fence_nb = on_fence;
  out.register_events = on_events;
  out.deregister_events = on_no_events;
  out.notify_event = on_notify;
  out.query = on_query;
  out.tool_connected = on_tool;
  out.job_control = on_control;
  return out;  // no spawn: a tool that connects can start nothing
}

/// Of one rank: what a tool has asked for.
struct Orders {
  std::vector<std::pair<std::string, std::string>> set;
  bool stop = false;
};

class Launcher {
 public:
  explicit Launcher(const LaunchOptions& options) : options_(options) {}
  int run();

 private:
  void start_server();
  void read_orders();
  void describe_job();
  void start_ranks(const std::string& program);
  void tell(pmix_status_t code, int status = 0);
  int wait_for_ranks();

  const LaunchOptions& options_;
  pmix_server_module_t module_ = make_module();
  pmix_proc_t self_{};
  pmix_proc_t tool_{};
  bool has_tool_ = false;
  Orders orders_;
};

/// Returns when the tool that started this process, if one did, has released it.
void Launcher::start_server() {
  const char* name = std::getenv("PMIX_SERVER_NSPACE");
  self_ = process_of(name ? name : fmt::format("heddle-{}-{}", host_name(), ::getpid()), 0);
  // Without PMIX_SERVER_TOOL_SUPPORT tools can connect too, but no files lead those that search for
  // a pid; and the job's data are not in files either, which pay from many ranks on: nothing stays,
  // however this process ends.
  ::setenv("PMIX_MCA_gds", "hash", 1);
  job().name_space = fmt::format("{}@1", self_.nspace);
  Infos infos;
  infos.text(PMIX_SERVER_NSPACE, self_.nspace).rank(PMIX_SERVER_RANK, 0);
  if (const auto status = PMIx_server_init(&module_, infos.data(), infos.size()); !is_done(status))
    throw fail_pmix("libpmix", "cannot start", status).value();
  if (options_.report_uri.empty()) return;
  pmix_value_t* uri = nullptr;
  if (const auto status = PMIx_Get(&self_, PMIX_MYSERVER_URI, nullptr, 0, &uri); !is_done(status))
    throw fail_pmix("libpmix", "does not say where it listens", status).value();
  value_or_throw(write_output(options_.report_uri, text_of(*uri) + "\n"));
}

void Launcher::read_orders() {
  pmix_value_t* value = nullptr;
  if (is_done(PMIx_Get(&self_, PMIX_PARENT_ID, nullptr, 0, &value)) && value->type == PMIX_PROC) {
    tool_ = *value->data.proc;
    has_tool_ = true;
  }
  Infos optional;
  optional.flag(PMIX_OPTIONAL);
  const auto all = process_of(self_.nspace, PMIX_RANK_WILDCARD);
  if (!is_done(PMIx_Get(&all, PMIX_LAUNCH_DIRECTIVES, optional.data(), optional.size(), &value)) ||
      value->type != PMIX_DATA_ARRAY || value->data.darray->type != PMIX_INFO)
    return;
  const auto* infos = static_cast<const pmix_info_t*>(value->data.darray->array);
  for (const auto* each = infos; each != infos + value->data.darray->size; ++each) {
    const auto is = [&](const char* key) {
      return std::strncmp(each->key, key, PMIX_MAX_KEYLEN) == 0;
    };
    const auto variable = [&] {
      return std::pair(text_of(each->value.data.envar.envar),
                       text_of(each->value.data.envar.value));
    };
    if (is(PMIX_SET_ENVAR)) orders_.set.push_back(variable());
    if (is(PMIX_DEBUG_STOP_ON_EXEC)) orders_.stop = true;
    if (is(PMIX_DEBUG_STOP_IN_INIT) || is(PMIX_DEBUG_STOP_IN_APP))
      throw Error("", "this launcher stops ranks after their exec only", "", "--stop exec");
  }
}

void Launcher::describe_job() {
  const auto count = static_cast<std::uint32_t>(options_.ranks);
  std::string ranks;
  for (std::uint32_t i = 0; i < count; ++i) ranks += (i ? "," : "") + std::to_string(i);
  char *nodes = nullptr, *places = nullptr;
  (void)PMIx_generate_regex(job().host.c_str(), &nodes);
  (void)PMIx_generate_ppn(ranks.c_str(), &places);
  Infos infos;
  for (const char* key : {PMIX_UNIV_SIZE, PMIX_JOB_SIZE, PMIX_LOCAL_SIZE, PMIX_NODE_SIZE,
                          PMIX_MAX_PROCS, PMIX_APP_SIZE})
    infos.number(key, count);
  infos.number(PMIX_NUM_NODES, 1).number(PMIX_JOB_NUM_APPS, 1).rank(PMIX_LOCALLDR, 0);
  infos.regex(PMIX_NODE_MAP, nodes).regex(PMIX_PROC_MAP, places);
  infos.text(PMIX_LOCAL_PEERS, ranks).text(PMIX_JOBID, job().name_space);
  for (std::uint32_t i = 0; i < count; ++i) {
    Infos one;
    one.rank(PMIX_RANK, i).rank(PMIX_GLOBAL_RANK, i).rank(PMIX_APP_RANK, i);
    one.small(PMIX_LOCAL_RANK, static_cast<std::uint16_t>(i));
    one.small(PMIX_NODE_RANK, static_cast<std::uint16_t>(i));
    one.number(PMIX_APPNUM, 0).number(PMIX_NODEID, 0).text(PMIX_HOSTNAME, job().host);
    infos.array(PMIX_PROC_DATA, one);
  }
  std::free(nodes);
  std::free(places);
  if (const auto status = PMIx_server_register_nspace(job().name_space.c_str(), options_.ranks,
                                                      infos.data(), infos.size(), nullptr, nullptr);
      !is_done(status))
    throw fail_pmix("libpmix", "does not take the job's description", status).value();
}

/// In the child process, with all signals blocked: as the user's shell would have started it.
[[noreturn]] void become_rank(const char* program, char* const* argv, char* const* environment,
                              bool stop, const sigset_t& mask, pid_t parent) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != parent) ::_exit(126);
  for (const int number : kSignals) ::signal(number, SIG_DFL);
  ::sigprocmask(SIG_SETMASK, &mask, nullptr);
  if (stop) ::ptrace(PTRACE_TRACEME, 0, nullptr, nullptr);
  ::execve(program, argv, environment);
  ::_exit(errno == ENOENT ? 127 : 126);
}

/// Waits for the exec of a rank that is traced, and leaves it stopped and untraced.
void leave_stopped(pid_t pid) {
  siginfo_t state{};
  // A rank that ended before is wait_for_ranks()'s to reap.
  while (::waitid(P_PID, static_cast<id_t>(pid), &state, WEXITED | WSTOPPED | WNOWAIT) < 0 &&
         errno == EINTR) {
  }
  if (state.si_code != CLD_TRAPPED && state.si_code != CLD_STOPPED) return;
  int status = 0;
  while (::waitpid(pid, &status, WUNTRACED) < 0 && errno == EINTR) {
  }
  ::kill(pid, SIGSTOP);
  ::ptrace(PTRACE_DETACH, pid, nullptr, SIGSTOP);
}

void Launcher::start_ranks(const std::string& program) {
  leave_pmix_job();
  for (const auto& [name, value] : orders_.set) ::setenv(name.c_str(), value.c_str(), 1);
  const auto argv = to_c_array(options_.command);
  const pid_t parent = ::getpid();
  for (int i = 0; i < options_.ranks; ++i) {
    const auto name = process_of(job().name_space, static_cast<pmix_rank_t>(i));
    if (const auto status =
            PMIx_server_register_client(&name, ::geteuid(), ::getegid(), nullptr, nullptr, nullptr);
        !is_done(status))
      throw fail_pmix("libpmix", "does not take a rank", status).value();
    std::vector<char*> variables;
    for (char** each = environ; *each; ++each) variables.push_back(::strdup(*each));
    variables.push_back(nullptr);
    auto** copy = static_cast<char**>(std::malloc(variables.size() * sizeof(char*)));
    std::ranges::copy(variables, copy);
    if (const auto status = PMIx_server_setup_fork(&name, &copy); !is_done(status))
      throw fail_pmix("libpmix", "does not describe a rank's environment", status).value();
    sigset_t all, mask;
    ::sigfillset(&all);
    ::pthread_sigmask(SIG_SETMASK, &all, &mask);
    const pid_t pid = ::fork();
    if (pid == 0) become_rank(program.c_str(), argv.data(), copy, orders_.stop, mask, parent);
    const int error = errno;
    if (pid > 0) {
      if (orders_.stop) leave_stopped(pid);
      job().ranks[static_cast<std::size_t>(i)].pid = pid;
    }
    ::pthread_sigmask(SIG_SETMASK, &mask, nullptr);
    if (pid < 0) throw Error(program, "cannot start", ::strerror(error));
  }
}

/// An event for the tool that has started this launcher, if one did.
void Launcher::tell(pmix_status_t code, int status) {
  if (!has_tool_) return;
  Infos infos;
  infos.process(PMIX_EVENT_CUSTOM_RANGE, tool_).flag(PMIX_EVENT_NON_DEFAULT);
  infos.text(PMIX_NSPACE, job().name_space).integer(PMIX_EXIT_CODE, status);
  (void)PMIx_Notify_event(code, &self_, PMIX_RANGE_CUSTOM, infos.data(), infos.size(), nullptr,
                          nullptr);
}

int Launcher::wait_for_ranks() {
  int worst = 0;
  for (std::size_t left = job().ranks.size(); left > 0;) {
    int status = 0;
    const pid_t pid = ::waitpid(-1, &status, 0);
    if (pid < 0 && errno != EINTR) return exit_failure;
    const auto rank =
        std::ranges::find_if(job().ranks, [&](const auto& r) { return r.pid == pid; });
    if (pid < 0 || rank == job().ranks.end()) continue;
    rank->pid = -1;
    rank->status = exit_status(status);
    --left;
    if (rank->status == 0 || worst != 0) continue;
    worst = rank->status;
    job().end();
  }
  ::alarm(0);
  return worst;
}

int Launcher::run() {
  const auto program = find_program(options_.command[0]);
  if (!program) return report_exec_failure(options_.command[0], program.error().code());
  struct sigaction action {};
  action.sa_sigaction = on_signal;
  action.sa_flags = SA_SIGINFO;
  silence_libevent();
  // libpmix's thread reads these as soon as the server listens.
  job().host = host_name();
  job().program = *program;
  job().ranks = std::vector<LocalRank>(static_cast<std::size_t>(options_.ranks));
  start_server();
  read_orders();
  describe_job();
  // Before, while a tool let it wait, signals ended this process.
  for (const int number : kSignals) ::sigaction(number, &action, nullptr);
  start_ranks(*program);
  tell(PMIX_LAUNCH_COMPLETE);
  if (orders_.stop) tell(PMIX_READY_FOR_DEBUG);
  const int status = wait_for_ranks();
  tell(PMIX_EVENT_JOB_END, status);
  (void)PMIx_server_finalize();
  return status;
}

}  // namespace

int launch_here(const LaunchOptions& options) { return Launcher(options).run(); }

}  // namespace heddle::pmix
