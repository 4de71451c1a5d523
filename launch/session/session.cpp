// SPDX-License-Identifier: MIT
#include "launch/session/session.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/file.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <set>

#include "base/channel.hpp"
#include "base/child.hpp"
#include "base/escape.hpp"
#include "base/launch/rank.hpp"
#include "base/run_directory.hpp"
#include "base/temp_dir.hpp"
#include "base/try.hpp"
#include "fsgen/guided_environment.hpp"
#include "launch/hooks.hpp"
#include "launch/session/manifest.hpp"
#include "launch/session/node_agent.hpp"
#include "launch/session/relay.hpp"
#include "resolver/elf/cached_facts.hpp"
#include "ship/engine.hpp"

namespace heddle::launch {
namespace {

using Words = std::vector<std::string>;
using Clock = std::chrono::steady_clock;
namespace fs = std::filesystem;
constexpr std::size_t kHashesAtOnce = 1000;

Result<std::string> sessions_directory() {
  const auto cache = TRY(cache_directory());
  return cache + "/sessions";
}

std::string random_id() {
  std::uint32_t number = 0;
  if (::getrandom(&number, sizeof number, 0) != sizeof number)
    number = static_cast<unsigned>(::getpid());
  return fmt::format("{:08x}", number);
}

std::chrono::milliseconds until(Clock::time_point end) {
  return std::chrono::ceil<std::chrono::milliseconds>(end - Clock::now());
}

Result<Words> words_of(const Words& command, Clock::time_point end) {
  return ship::words_printed_by(command, until(end));
}

/// squeue knows running steps; scontrol also ones that have just ended.
Result<std::string> nodes_of_step(const std::string& step, Clock::time_point end) {
  const auto words = TRY(words_of(
      {"squeue", "-h", "-s", "-a", "-o", "%i %N", "-j", step.substr(0, step.find('.'))}, end));
  for (std::size_t i = 0; i + 1 < words.size(); i += 2)
    if (words[i] == step) return words[i + 1];
  return fail(step, "is no running step");
}

Result<std::string> nodes_of_job(const std::string& job, Clock::time_point end) {
  const auto words =
      TRY(words_of({"squeue", "-h", "-a", "-t", "running", "-o", "%A %N", "-j", job}, end));
  if (words.size() != 2 || words[1].empty()) return fail(job, "is no running job");
  return words[1];
}

/// Of relays that were killed on this host, now or before it was booted: a relay has a lock.
void sweep_dead(const RunDirectory& run) {
  const auto sessions = sessions_directory();
  if (!sessions) return;
  const auto all = RunDirectory::find(*sessions);
  if (!all) return;
  for (const auto& id : all->names()) {
    const auto directory = all->path() + "/" + id;
    const auto text = ship::is_plain_name(id) ? read_file(directory + "/settings", 1UL << 20)
                                              : Result<std::string>(fail("", ""));
    const auto settings =
        text ? decode_record<SessionSettings>(*text) : Result<SessionSettings>(fail("", ""));
    if (!settings || settings->host != host_name()) continue;
    const auto file = open_file(directory + "/settings", O_RDWR | O_NOFOLLOW);
    if (!file || ::flock(file->get(), LOCK_EX | LOCK_NB) != 0) continue;
    run.remove(socket_name(id));
    (void)remove_tree(directory);
  }
}

Words agent_words(const SessionSettings& s, const std::string& node) {
  Words out = {"session", "agent", s.id, "--to", s.to, "--job", s.job};
  if (!s.step.empty()) out.push_back("--step=" + s.step);
  if (!node.empty()) out.insert(out.end(), {"--node", node});
  return out;
}

/// Starts fs-launch with `arguments` on each of `nodes`.
std::vector<Words> node_commands(const CreateOptions& o, const SessionSettings& s,
                                 const std::string& program, const Words& nodes,
                                 const std::function<Words(const std::string&)>& arguments) {
  std::vector<Words> out;
  if (o.local) {
    Words words = {program};
    const auto more = arguments(nodes.front());
    words.insert(words.end(), more.begin(), more.end());
    return {words};
  }
  if (o.rsh.empty()) {
    const auto count = std::to_string(nodes.size());
    Words words = ship::own_slurm("srun", false);
    const Words options = {"--jobid=" + s.job,
                           "--overlap",
                           "--gres=none",
                           "--mem=0",
                           "--mpi=none",
                           "--prolog=none",
                           "--epilog=none",
                           "--quiet",
                           "--no-kill",
                           "--kill-on-bad-exit=0",
                           "--input=all",
                           "--output=all",
                           "--error=all",
                           "--ntasks-per-node=1",
                           "--wait=0",
                           "-N",
                           count,
                           "-n",
                           count,
                           "-w",
                           fmt::format("{}", fmt::join(nodes, ",")),
                           program};
    words.insert(words.end(), options.begin(), options.end());
    const auto more = arguments("");
    words.insert(words.end(), more.begin(), more.end());
    return {words};
  }
  for (const auto& node : nodes) {
    auto words = ship::split_words(o.rsh);
    words.push_back(node);
    words.push_back(quote_for_shell(program));
    for (const auto& word : arguments(node)) words.push_back(quote_for_shell(word));
    out.push_back(std::move(words));
  }
  return out;
}

/// The job, its step and its nodes.
Result<void> name_nodes(const CreateOptions& o, SessionSettings& s, Clock::time_point end) {
  if (!o.rsh.empty() || o.local) {
    s.nodes = o.local ? Words{s.host} : o.nodes;
    s.job = o.job.empty() ? "s" + s.id : o.job;
    if (s.nodes.empty()) return fail("", "which nodes?", "--rsh needs --nodes");
  } else {
    const char* own = std::getenv("SLURM_JOB_ID");
    s.job = !o.step.empty()  ? o.step.substr(0, o.step.find('.'))
            : !o.job.empty() ? o.job
            : own            ? own
                             : "";
    if (s.job.empty())
      return fail("", "not within an allocation", "SLURM_JOB_ID is not set",
                  "name a job or a step, give --rsh and --nodes, or --local for this machine");
    if (s.step.empty()) s.step = s.job;
    const auto list =
        o.step.empty() ? TRY(nodes_of_job(s.job, end)) : TRY(nodes_of_step(o.step, end));
    s.nodes = TRY(words_of({"scontrol", "show", "hostnames", list}, end));
    for (const auto& node : o.nodes)
      if (std::ranges::count(s.nodes, node) == 0) return fail(node, "is no node of job " + s.job);
    if (!o.nodes.empty()) s.nodes = o.nodes;
  }
  if (!ship::is_plain_name(s.job)) return fail(s.job, "is not a job's id");
  std::set<std::string> names;
  for (const auto& node : s.nodes) {
    if (!ship::is_plain_name(node)) return fail(node, "is not a node's name");
    if (!names.insert(node.substr(0, node.find('.'))).second) return fail(node, "named twice");
  }
  return {};
}

}  // namespace

Result<Session> Session::create(const CreateOptions& o) {
  const auto end = Clock::now() + std::chrono::seconds(o.seconds);
  SessionSettings s;
  s.id = random_id();
  s.host = host_name();
  s.to = fs::path(o.to + "/.").lexically_normal().parent_path().string();
  s.step = o.step.empty() ? o.ranks : o.step;
  s.via = !o.via.empty() ? o.via : o.rsh.empty() && !o.local ? "sbcast" : "shared";
  TRY(name_nodes(o, s, end));
  RelayOptions relay;
  relay.seconds = static_cast<int>(std::chrono::ceil<std::chrono::seconds>(until(end)).count());
  relay.tool = o.tool;
  const auto program = TRY(own_program_dir()) + "/fs-launch";
  relay.commands = node_commands(o, s, program, s.nodes,
                                 [&](const std::string& node) { return agent_words(s, node); });
  relay.sweep = [&](const Words& nodes) {
    return node_commands(o, s, program, nodes, [&](const std::string&) {
      return Words{"session", "sweep", "--to", s.to};
    });
  };

  const auto run = TRY(RunDirectory::open());
  const auto sessions = TRY(sessions_directory());
  std::error_code ignored;
  fs::create_directories(default_cache_dir(), ignored);
  TRY(RunDirectory::open_at(sessions));
  sweep_dead(run);
  relay.directory = sessions + "/" + s.id;
  relay.settings = s;
  TRY(RunDirectory::open_at(relay.directory));
  Encoder coder;
  coder(s);
  const auto settings = relay.directory + "/settings";
  const Fd file = TRY(open_file(settings, O_WRONLY | O_CREAT | O_EXCL, 0600));
  if (::flock(file.get(), LOCK_EX) != 0) return fail_errno(settings, "cannot be locked");
  TRY(write_all(file.get(), coder.take(), settings));

  SocketPair pair = TRY(make_socket_pair());
  ForkOptions options;
  options.dies_with_parent = false;
  options.null_stdio = true;
  options.keep = std::vector<int>{pair.other.get(), file.get()};
  options.name = "heddle-session";
  auto child = fork_child(options, [&] {
    ::setsid();
    return run_relay(relay, pair.other.get());
  });
  if (!child) return fail(child.error());
  pair.other.reset();
  const auto answer =
      receive_record<Answer>(pair.one.get(), std::chrono::seconds(relay.seconds + 30));
  if (answer && !answer->message.error && answer->message.words.size() == 2) {
    child->release();
    const auto step = relay.directory + "/step";
    const Fd its = TRY(open_file(step, O_WRONLY | O_CREAT | O_EXCL, 0600));
    TRY(write_all(its.get(), answer->message.words[1], step));
    return Session(std::move(s), relay.directory);
  }
  if (!answer) {
    run.remove(socket_name(s.id));
    (void)remove_tree(relay.directory);
  }
  (void)child->wait_for(std::chrono::seconds(20));
  return fail(!answer                 ? answer.error()
              : answer->message.error ? *answer->message.error
                                      : Error("", "invalid answer of an agent"));
}

Result<Session> Session::find(const std::string& id) {
  const auto sessions = TRY(sessions_directory());
  const auto directory = sessions + "/" + id;
  if (!ship::is_plain_name(id)) return fail(id, "is not a session's id");
  const auto found = RunDirectory::find(directory);
  const auto text = found ? read_file(directory + "/settings", 1UL << 20)
                          : Result<std::string>(fail(found.error()));
  if (!text) return fail(id, "there is no such session", "", "it ends with its job");
  auto settings = TRY(decode_record<SessionSettings>(*text));
  if (settings.host != host_name())
    return fail(id, "this is a session of another host", settings.host);
  return Session(std::move(settings), directory);
}

Result<Fd> Session::lock() const {
  Fd out = TRY(open_file(directory_, O_RDONLY | O_DIRECTORY));
  while (::flock(out.get(), LOCK_EX) != 0)
    if (errno != EINTR) return fail_errno(directory_, "cannot be locked");
  return out;
}

Result<std::vector<Answer>> Session::ask(const Request& request) const {
  const auto run = TRY(RunDirectory::open());
  const auto socket = run.connect_to(socket_name(id()));
  const bool is_anothers = !socket && socket.error().code() == EADDRNOTAVAIL;
  if (!socket && !is_anothers) {
    sweep_dead(run);
    return fail(id(), "the session has ended", socket.error().message());
  }
  if (is_anothers || !is_own_peer(socket->get()))
    return fail(id(), "another process listens in place of the session", "",
                run.path() +
                    " is of a container or sandbox, or this process is less confined "
                    "than the one that made the session");
  const auto sent = send_record(socket->get(), request);
  // Else the relay has closed the connection: it says why, or has ended.
  if (!sent && sent.error().code() == EMSGSIZE) return fail(sent.error());
  std::vector<Answer> out;
  for (;;) {
    auto got = receive_record<Answer>(socket->get(), std::chrono::seconds(660));
    if (!got && out.empty() && got.error().code() == ECONNRESET) {
      sweep_dead(run);
      return fail(id(), "the session has ended, or refuses this process", "",
                  "call it outside of containers, chroots and sandboxes");
    }
    if (!sent || !got) return fail(sent ? got.error() : sent.error());
    if (got->message.node.empty()) break;
    out.push_back(std::move(got->message));
  }
  std::ranges::sort(out, {}, &Answer::node);
  // Nodes that failed alike in one line.
  std::string wrong;
  const Answer* first = nullptr;
  for (const auto& answer : out) {
    if (!answer.error) continue;
    if (!first) first = &answer;
    if (answer.error->message() == first->error->message())
      wrong += (wrong.empty() ? "" : ",") + answer.node;
  }
  if (first)
    return fail(Error::with_code(first->error->code(), wrong, first->error->message(), "",
                                 first->error->hint()));
  return out;
}

Result<Session::Shipped> Session::ship() const {
  const Fd held = TRY(lock());
  auto manifest = TRY(Manifest::read(directory_));
  std::set<std::string> hashes;
  std::uint64_t content = 0;
  Shipped out;
  for (const auto& item : manifest.items()) {
    if (item.shipped) continue;
    ++out.names;
    if (item.kind == Item::Kind::file) hashes.insert(item.hash.hex());
  }
  if (out.names == 0) return out;
  const std::vector<std::string> all(hashes.begin(), hashes.end());
  std::set<std::string> missing;
  std::vector<Answer> answers;
  for (std::size_t at = 0; at == 0 || at < all.size(); at += kHashesAtOnce) {
    Request have;
    have.op = Op::have;
    for (auto i = at; i < std::min(all.size(), at + kHashesAtOnce); ++i)
      have.words.push_back(all[i]);
    answers = TRY(ask(have));
    for (const auto& answer : answers) missing.insert(answer.words.begin(), answer.words.end());
  }
  const std::vector<std::string> wanted(missing.begin(), missing.end());
  for (const auto& item : manifest.items())
    if (missing.erase(item.hash.hex()) > 0) content += item.size;
  for (const auto& answer : answers)
    if (answer.number < 2 * content)  // the pack, and what is taken out of it
      return fail(Error::with_code(ENOSPC, answer.node, settings_.to + " has no room",
                                   fmt::format("{} bytes of {}", answer.number, 2 * content)));

  const auto source = directory_ + "/pack";
  const auto pack = TRY(write_pack(source, manifest.items(), wanted));
  const bool is_shared = settings_.via == "shared";
  const auto target =
      is_shared ? source
                : fmt::format("{}/session.{}/pack",
                              ship::job_directory(settings_.to, settings_.job), settings_.id);
  Request request;
  request.op = Op::stage;
  request.words = {target, pack.hash.hex()};
  request.number = pack.list;
  Result<void> done;
  if (!is_shared) {
    const auto step = TRY(read_file(directory_ + "/step", 4096));
    auto words = settings_.via == "sbcast" ? ship::sbcast() : ship::split_words(settings_.via);
    words = ship::fill_in(words, {{"src", source},
                                  {"dst", target},
                                  {"nodes", fmt::format("{}", fmt::join(settings_.nodes, ","))},
                                  {"count", std::to_string(settings_.nodes.size())},
                                  {"step", step}});
    done = ship::run_engine(words, ship::copy_time(pack.content));
  }
  if (done)
    if (const auto staged = ask(request); !staged) done = fail(staged.error());
  if (!done) {
    request.op = Op::discard;
    (void)ask(request);
    (void)::unlink(source.c_str());
    return fail(done.error());
  }
  (void)::unlink(source.c_str());
  manifest.set_shipped();
  TRY(manifest.write(directory_));
  out.bytes = pack.content;
  return out;
}

}  // namespace heddle::launch
