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

std::uint64_t size_of_job(const std::string& mark) {
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
    if (!launch || std::string_view(launch).find(mark) == std::string_view::npos || its == 0 ||
        its == own || starts_ranks(std::filesystem::read_symlink(at->path() / "exe", unread)))
      continue;
    for (const char* name : kSizeVariables)
      if (const auto* text = value(name)) return std::strtoull(text, nullptr, 10);
  }
  return 0;
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
    // Ever more seldom: a long job has many processes beside it.
    for (auto pause = milliseconds(20); job.ranks == 0 || (srun > 0 && job.nodes.empty());
         pause = std::min(2 * pause, kLongestPause)) {
      if (job.ranks == 0) job.ranks = size_of_job(mark);
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
