// SPDX-License-Identifier: MIT
#include "launch/sub_commands.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <signal.h>
#include <sys/random.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>
#include <thread>

#include "base/bounded_json.hpp"
#include "base/command_line.hpp"
#include "base/escape.hpp"
#include "base/exit_code.hpp"
#include "base/fd.hpp"
#include "base/launch/rank.hpp"
#include "base/log.hpp"
#include "base/run_main.hpp"
#include "launch/session/manifest.hpp"
#include "launch/session/node_agent.hpp"
#include "launch/session/processes.hpp"
#include "launch/session/session.hpp"

namespace heddle::launch {
namespace {

using Words = std::vector<std::string>;

struct Options {
  CreateOptions create;
  AgentOptions agent;
  std::string id;
  Words binaries, libraries, directories, files;
  std::string log, directory, signal;
  Words variables, command;
  bool wait = false, json = false, here = false;
};

int print_id(const Result<Session>& made) {
  if (!made) throw made.error();
  fmt::print("{}\n", made->id());
  return exit_done;
}

constexpr const char* kPrintsTable = "fs-launch pmix query --json prints one";

/// The job and the nodes of a table of PMIx. Its texts are those of the server that was asked; the
/// worst, of one that took the launcher's port: agents run on another node of the Slurm job, or
/// where the user's own remote shell leads, and end with the session.
void take_table(CreateOptions& o) {
  constexpr std::size_t kLargest = std::size_t{64} << 20;
  std::set<std::string> jobs, nodes;
  const auto table = parse_bounded<nlohmann::json>(value_or_throw(read_file(o.pmix, kLargest)),
                                                   {.values = kLargest});
  try {
    if (table.is_discarded()) throw Error(o.pmix, "is no table of ranks", "", kPrintsTable);
    for (const auto& each : table)
      for (const auto& rank : each.contains("ranks") ? each["ranks"] : nlohmann::json{each}) {
        const auto job = rank.at("namespace").get<std::string>();
        if (!o.ranks.empty() && job != o.ranks) continue;
        jobs.insert(job);
        nodes.insert(rank.at("host").get<std::string>());
      }
  } catch (const nlohmann::json::exception&) {
    throw Error(o.pmix, "is no table of ranks", "", kPrintsTable);
  }
  if (jobs.size() != 1)
    throw Error(o.pmix, "whose ranks?",
                jobs.empty() ? "it has none" : fmt::format("of {}", fmt::join(jobs, ", ")),
                jobs.empty() ? "" : "name one of them: --ranks JOB");
  o.ranks = *jobs.begin();
  o.nodes.assign(nodes.begin(), nodes.end());
  const bool is_slurms = !o.job.empty() || std::getenv("SLURM_JOB_ID");
  o.local = !is_slurms && o.rsh.empty() && o.nodes == Words{host_name()};
}

int run_create(Options& o) {
  if (!o.create.pmix.empty()) take_table(o.create);
  return print_id(Session::create(o.create));
}

int run_attach(Options& o) {
  if (o.create.step.find('.') == o.create.step.npos)
    throw Error(o.create.step, "is not a step", "", "JOB.STEP, as squeue -s prints it");
  return run_create(o);
}

int run_add(Options& o) {
  const auto session = value_or_throw(Session::find(o.id));
  const auto held = value_or_throw(session.lock());
  auto manifest = value_or_throw(Manifest::read(session.directory()));
  for (const auto& each : o.binaries) value_or_throw(manifest.add_binary(each));
  for (const auto& each : o.libraries) value_or_throw(manifest.add_library(each));
  for (const auto& each : o.directories) value_or_throw(manifest.add_directory(each));
  for (const auto& each : o.files) value_or_throw(manifest.add_file(each));
  value_or_throw(manifest.write(session.directory()));
  return exit_done;
}

int run_ship(Options& o) {
  const auto session = value_or_throw(Session::find(o.id));
  const auto shipped = value_or_throw(session.ship());
  fmt::print("{} bytes, {} names\n", shipped.bytes, shipped.names);
  return exit_done;
}

void print_output(const Session& session, std::uint64_t daemon) {
  std::map<std::string, std::string> texts;
  Request request;
  request.op = Op::output;
  request.number = daemon;
  for (bool more = true; more; request.offset += 32'768) {
    more = false;
    for (auto& answer : value_or_throw(session.ask(request))) {
      if (answer.words.empty()) continue;
      more = more || !answer.words[0].empty();
      texts[answer.node] += answer.words[0];
    }
  }
  for (const auto& [node, text] : texts) fmt::print("{}", text);
}

int run_daemon(Options& o) {
  const auto session = value_or_throw(Session::find(o.id));
  if (o.command.empty()) throw Error("", "no program given", "", "put it behind --");
  Request request;
  request.op = Op::daemon;
  const auto absolute = [](const std::string& path) {
    return path.empty() ? path : std::filesystem::absolute(path).string();
  };
  request.words = {absolute(o.log), o.directory.empty() ? absolute(".") : o.directory};
  request.words.insert(request.words.end(), o.command.begin(), o.command.end());
  for (const auto& each : o.variables)
    if (each.find('=') == 0 || each.find('=') == each.npos) throw Error(each, "is not NAME=VALUE");
  request.more = o.variables;
  if (::getrandom(&request.number, sizeof request.number, 0) != sizeof request.number)
    throw Error::from_errno("", "no random number", errno);
  if (const auto started = session.ask(request); !started) {
    Request undo;
    undo.op = Op::stop;
    undo.number = request.number;
    (void)session.ask(undo);
    throw started.error();
  }
  if (!o.wait) return exit_done;
  Request ask;
  ask.op = Op::status;
  ask.number = request.number;
  for (auto pause = std::chrono::milliseconds(20);;
       pause = std::min(pause * 2, std::chrono::milliseconds(500))) {
    int worst = 0;
    bool running = false;
    std::vector<Error> lost;
    for (const auto& answer : value_or_throw(session.ask(ask))) {
      if (answer.words.at(0) == "running")
        running = true;
      else
        worst = std::max(worst, std::stoi(answer.words[0]));
      if (answer.words.size() > 1)
        lost.push_back(Error::from_errno(answer.node + ": " + answer.words[1],
                                         "the program's output may not be whole", ENOSPC));
    }
    if (!running) {
      print_output(session, request.number);
      for (const auto& each : lost) report(each);
      return lost.empty() ? worst : std::max<int>(worst, exit_failure);
    }
    std::this_thread::sleep_for(pause);
  }
}

int run_ranks(Options& o) {
  std::vector<Rank> ranks;
  if (o.here) {
    ranks = ranks_here(o.agent.step);
  } else {
    const auto session = value_or_throw(Session::find(o.id));
    Request request;
    request.op = Op::ranks;
    for (auto& answer : value_or_throw(session.ask(request)))
      for (auto& rank : answer.ranks) {
        rank.host = answer.node;
        ranks.push_back(std::move(rank));
      }
  }
  std::ranges::sort(ranks, {}, [](const Rank& r) { return std::tie(r.job, r.rank); });
  if (o.json) {
    auto list = nlohmann::json::array();
    for (const auto& r : ranks)
      list.push_back({{"rank", r.rank},
                      {"pid", r.pid},
                      {"host", to_json_text(r.host)},
                      {"job", to_json_text(r.job)},
                      {"program", to_json_text(r.program)}});
    fmt::print("{}\n", list.dump(2));
    return exit_done;
  }
  for (const auto& r : ranks)
    fmt::print("{} {} {} {} {}\n", r.rank, r.pid, escape_for_terminal(r.host),
               r.job.empty() ? "-" : escape_for_terminal(r.job), escape_for_terminal(r.program));
  return exit_done;
}

int signal_number(std::string name) {
  if (name.starts_with("SIG")) name.erase(0, 3);
  for (int number = 1; number < SIGRTMIN; ++number)
    if (const char* each = ::sigabbrev_np(number); each && name == each) return number;
  if (!name.empty() && name.size() < 3 && name.find_first_not_of("0123456789") == name.npos)
    if (const int number = std::stoi(name); number <= SIGRTMAX) return number;
  throw Error(name, "is no signal");
}

int run_signal(Options& o) {
  const auto session = value_or_throw(Session::find(o.id));
  Request request;
  request.op = Op::signal;
  request.number = static_cast<std::uint64_t>(signal_number(o.signal));
  // Without Slurm nothing else says which of this user's jobs on these nodes is meant.
  if (session.settings().step.empty()) {
    std::set<std::string> jobs;
    Request ranks;
    ranks.op = Op::ranks;
    for (const auto& answer : value_or_throw(session.ask(ranks)))
      for (const auto& rank : answer.ranks) jobs.insert(rank.job.empty() ? "-" : rank.job);
    if (jobs.size() > 1)
      throw Error(o.id, "whose ranks?", fmt::format("of {} there are some", fmt::join(jobs, ", ")),
                  "make a session for one of them: fs-launch session create --ranks JOB");
    request.words = {jobs.empty() || *jobs.begin() == "-" ? "" : *jobs.begin()};
  }
  std::size_t count = 0;
  for (const auto& answer : value_or_throw(session.ask(request))) count += answer.words.size();
  fmt::print("{} ranks\n", count);
  return count > 0 ? exit_done : exit_no;
}

int run_destroy(Options& o) {
  const auto session = value_or_throw(Session::find(o.id));
  Request request;
  request.op = Op::destroy;
  value_or_throw(session.ask(request));
  return exit_done;
}

int run_as_agent(Options& o) {
  o.agent.id = o.id;
  return run_agent(o.agent);
}

int run_sweep(Options& o) {
  sweep_node(o.agent.to);
  return exit_done;
}

void add_create_options(CLI::App& sub, CreateOptions& o) {
  sub.add_option("--to", o.to, "On the nodes, below this directory of their own (/tmp)")
      ->type_name("DIR");
  sub.add_option(
         "--via", o.via,
         "What copies files to the nodes: sbcast, shared, or a command with {src} and {dst}")
      ->type_name("ENGINE");
  sub.add_option("--tool", o.tool, "The session ends with this process")->type_name("PID");
  sub.add_option("--timeout", o.seconds, "Seconds until all nodes have answered (30)")
      ->type_name("SECONDS")
      ->check(number_from(1, 3600));
}

}  // namespace

int session_main(int argc, const char* const* argv) {
  CLI::App app("Tools on the nodes of a job, beside its ranks.", "fs-launch session");
  set_usage(app, "");
  app.require_subcommand(1);
  Options o;
  int (*action)(Options&) = nullptr;
  CLI::App* sub = nullptr;
  const auto add = [&](const char* name, const char* text, int (*run)(Options&)) {
    sub = app.add_subcommand(name, text);
    sub->callback([&action, run] { action = run; });
  };
  const auto add_id = [&] {
    sub->add_option("ID", o.id, "The session")->required()->type_name("");
  };
  const auto add_list = [&](const char* name, Words& list, const char* type, const char* text) {
    sub->add_option(name, list, text)->type_name(type)->allow_extra_args(false);
  };
  add("create", "Start an agent on each node of a job; prints the session's ID", run_create);
  sub->add_option("--job", o.create.job, "The Slurm job (default: this one)")->type_name("JOB");
  sub->add_option("--rsh", o.create.rsh, "Start the agents by this remote shell, not by srun")
      ->type_name("COMMAND");
  auto* nodes =
      sub->add_option("--nodes", o.create.nodes, "The nodes for --rsh, or of the job these")
          ->delimiter(',')
          ->type_name("NODE,...");
  auto* local =
      sub->add_flag("--local", o.create.local, "On this machine alone")->excludes("--rsh", "--job");
  sub->add_option("--ranks", o.create.ranks,
                  "Of the ranks only those of this job, as fs-launch session ranks prints it")
      ->type_name("JOB");
  sub->add_option("--pmix", o.create.pmix,
                  "Of the PMIx job in this table, as fs-launch pmix query --json prints it, on its "
                  "nodes")
      ->type_name("FILE")
      ->excludes(nodes)
      ->excludes(local);
  add_create_options(*sub, o.create);
  add("attach", "The same on the nodes of a running step, for its ranks alone", run_attach);
  sub->add_option("STEP", o.create.step, "JOB.STEP")->required()->type_name("");
  add_create_options(*sub, o.create);
  add("add", "Name what is to be staged", run_add);
  add_id();
  add_list("--binary", o.binaries, "FILE", "A program, with its libraries (repeatable)");
  add_list("--library", o.libraries, "FILE", "A library, with those it needs (repeatable)");
  add_list("--directory", o.directories, "DIR", "A directory with all below it (repeatable)");
  add_list("--file", o.files, "FILE", "A file (repeatable)");
  add("ship", "Copy to the nodes what they do not have", run_ship);
  add_id();
  add("daemon", "Start a program once on each node: daemon ID -- PROGRAM ARGS...", run_daemon);
  add_id();
  add_list("--env", o.variables, "NAME=VALUE", "Set this variable (repeatable)");
  sub->add_option("--cwd", o.directory, "Its working directory (default: this one)")
      ->type_name("DIR");
  sub->add_option("--log", o.log, "Append its output to FILE.NODE")->type_name("FILE");
  sub->add_flag("--wait", o.wait, "Wait for its end and print its output, node by node");
  add("ranks", "Print rank, pid, node, job and program of each rank", run_ranks);
  sub->add_option("ID", o.id, "The session")->type_name("");
  sub->add_flag("--here", o.here, "Of this node, without a session");
  sub->add_option("--step", o.agent.step, "With --here: of this job or JOB.STEP alone")
      ->type_name("JOB");
  sub->add_flag("--json", o.json, "As JSON");
  add("signal", "Send a signal to each rank; 0 only counts those alive", run_signal);
  add_id();
  sub->add_option("SIGNAL", o.signal, "USR1, SIGTERM, 15, ...")->required()->type_name("");
  add("destroy", "End the daemons and remove all from the nodes", run_destroy);
  add_id();
  add("agent", "", run_as_agent);
  sub->group("");
  add_id();
  sub->add_option("--to", o.agent.to)->required();
  sub->add_option("--job", o.agent.job)->required();
  sub->add_option("--step", o.agent.step);
  sub->add_option("--node", o.agent.node);
  add("sweep", "", run_sweep);
  sub->group("");
  sub->add_option("--to", o.agent.to)->required();
  for (auto* each : app.get_subcommands([](const CLI::App*) { return true; }))
    forbid_empty_values(*each);

  const auto* const* end = std::find(argv + 1, argv + argc, std::string_view("--"));
  o.command.assign(std::min(end + 1, argv + argc), argv + argc);
  if (const int status = parse_options(app, {argv + 1, end}); status >= 0) return status;
  if (!o.here && o.id.empty() && action == run_ranks)
    return usage_error("fs-launch session ranks", "no session given");
  if (!o.create.to.starts_with('/'))
    return usage_error("fs-launch session", "--to needs an absolute path");
  const int status = action(o);
  value_or_throw(flush_stdout());
  return status;
}

}  // namespace heddle::launch
