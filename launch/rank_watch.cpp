// SPDX-License-Identifier: MIT
#include "launch/rank_watch.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <iterator>
#include <set>
#include <sstream>
#include <string_view>
#include <thread>

#include "base/fd.hpp"
#include "base/find_program.hpp"
#include "base/launch/rank.hpp"
#include "base/rank_mark.hpp"
#include "base/run_program.hpp"
#include "launch/allocation.hpp"
#include "launch/rank_agent.hpp"

namespace heddle::launch {
namespace {

using std::chrono::milliseconds;
constexpr std::size_t kLargestEnvironment = std::size_t{64} << 20;
constexpr milliseconds kSlurmsTime{10'000};
constexpr milliseconds kLongestPause{10'000};
/// Slurm's controller is not asked for jobs that end before.
constexpr milliseconds kFirstQuestion{500};

/// Of proc_pid_environ(5), which any process can write to; the worst is a wrong number.
const char* value_in(const std::string& environment, std::string_view name) {
  for (std::size_t at = 0; at < environment.size(); at = environment.find('\0', at) + 1) {
    const std::string_view rest = std::string_view(environment).substr(at);
    if (rest.starts_with(name) && rest.substr(name.size()).starts_with('='))
      return environment.c_str() + at + name.size() + 1;
    if (rest.find('\0') == rest.npos) break;
  }
  return nullptr;
}

/// The node on which a remote shell with this command line (words that end with NUL) starts a
/// daemon of Open MPI, PRRTE or hydra: the word before the daemon's. Empty: it starts none, or the
/// node is an address, which is no name to compare with.
std::string node_of_daemon(const std::string& command_line) {
  std::istringstream words(command_line);
  std::string before, word;
  for (int at = 0; std::getline(words, word, '\0'); ++at, before = word) {
    // The daemon may stand in a line for the other node's shell: "PATH=...; /usr/bin/orted".
    std::ranges::replace_if(
        word, [](char c) { return c == ';' || c == '"' || c == '\''; }, ' ');
    std::istringstream tokens(word);
    bool is_daemons = false;
    for (std::string token; tokens >> token;) {
      const auto name = std::string_view(token).substr(token.rfind('/') + 1);
      for (const char* daemon : {"orted", "prted", "hydra_pmi_proxy", "hydra_bstrap_proxy"})
        is_daemons = is_daemons || name == daemon;
    }
    const auto node = before.substr(before.find('@') + 1);
    const bool is_name = node.find_first_not_of("0123456789.") != node.npos &&
                         node.front() != '-' && node.find_first_of("/: ") == node.npos;
    if (at >= 2 && is_daemons && is_name) return node;
  }
  return "";
}

/// Adds what this node's processes with `mark` show: how many ranks there are, and the nodes of
/// remote shells.
void look_at_processes(const std::string& mark, SeenJob& job, std::set<std::string>& nodes) {
  const auto own = rank_mark([](const char* name) { return std::getenv(name); });
  std::error_code error, unread;
  for (std::filesystem::directory_iterator at("/proc", error), end; !error && at != end;
       at.increment(error)) {
    if (at->path().filename().native().find_first_not_of("0123456789") != std::string::npos)
      continue;
    const auto environment = read_file(at->path() / "environ", kLargestEnvironment);
    if (!environment || environment->find(mark) == environment->npos) continue;
    const auto value = [&](const char* name) { return value_in(*environment, name); };
    const auto* launch = value(kLaunchVariable);
    const auto its = rank_mark(value);
    if (!launch || std::string_view(launch).find(mark) == std::string_view::npos ||
        starts_ranks(std::filesystem::read_symlink(at->path() / "exe", unread)))
      continue;
    if (its != 0 && its != own) {
      for (const char* name : kSizeVariables)
        if (const auto* text = value(name); text && job.ranks == 0)
          job.ranks = std::strtoull(text, nullptr, 10);
      continue;
    }
    const auto words = read_file(at->path() / "cmdline", kLargestEnvironment);
    if (auto node = node_of_daemon(words.value_or("")); !node.empty()) nodes.insert(node);
  }
}

/// The step that the process `srun` of this node has started, if there is one already.
SeenJob step_of(pid_t srun) {
  SeenJob out;
  const auto scontrol = find_program("scontrol");
  if (!scontrol) return out;
  const auto steps = run_and_read(
      *scontrol, {"scontrol", "--oneliner", "show", "step"},
      {.limit = kSlurmsTime, .most_bytes = kLargestEnvironment, .messages = Messages::dropped});
  const auto host = host_name();
  const auto here = fmt::format("SrunHost:Pid={}:{}", host.substr(0, host.find('.')), srun);
  std::string nodes;  // a step of several components has a line for each
  std::istringstream lines(steps ? steps->out : "");
  for (std::string line; std::getline(lines, line);) {
    // A step's name, which another user chooses, may have fields in it: the user stands before it.
    // The worst of a name with a line of its own is a wrong number, and wrong names of nodes.
    std::istringstream words(line);
    std::string id, user;
    words >> id >> user;
    const std::set<std::string> fields{std::istream_iterator<std::string>(words), {}};
    if (user != fmt::format("UserId={}", ::getuid()) || !fields.contains(here)) continue;
    const auto value = [&](const std::string& name) {
      const auto at = fields.lower_bound(name);
      return at != fields.end() && at->starts_with(name) ? at->substr(name.size()) : "";
    };
    out.ranks += std::strtoull(value("Tasks=").c_str(), nullptr, 10);
    nodes += (nodes.empty() ? "" : ",") + value("NodeList=");
  }
  if (!nodes.empty()) out.nodes = slurm_nodes(nodes);
  return out;
}

}  // namespace

RankWatch::RankWatch(std::string mark, pid_t srun) {
  // Nothing waits for its end: to read the environment of a process that waits for a file server
  // can take as long.
  std::thread([shared = shared_, mark = std::move(mark), srun] {
    SeenJob job;
    std::set<std::string> remote;
    // Ever more seldom: a long job has many processes beside it.
    for (auto pause = milliseconds(20); job.ranks == 0 || (srun > 0 && job.nodes.empty());
         pause = std::min(2 * pause, kLongestPause)) {
      if (job.ranks == 0) {
        look_at_processes(mark, job, remote);
        if (srun == 0) job.nodes.assign(remote.begin(), remote.end());
        job.others_only = srun == 0;
      }
      if (srun > 0 && pause >= kFirstQuestion) {
        auto step = step_of(srun);
        job.nodes = std::move(step.nodes);
        if (job.ranks == 0) job.ranks = step.ranks;
      }
      {
        const std::lock_guard lock(shared->mutex);
        shared->job = job;
      }
      std::this_thread::sleep_for(pause);
    }
  }).detach();
}

SeenJob RankWatch::seen() const {
  const std::lock_guard lock(shared_->mutex);
  return shared_->job;
}

}  // namespace heddle::launch
