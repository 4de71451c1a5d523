// SPDX-License-Identifier: MIT
#include "launch/session/processes.hpp"

#include <dirent.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <sstream>
#include <thread>
#include <tuple>

#include "base/fd.hpp"
#include "base/launch/rank.hpp"
#include "base/paths.hpp"
#include "base/rank_mark.hpp"
#include "base/try.hpp"
#include "launch/launch_settings.hpp"
#include "launch/rank_agent.hpp"

namespace heddle::launch {
namespace {

using Clock = std::chrono::steady_clock;
/// SLURM_BATCH_SCRIPT and others of slurm.h are above: steps that start launchers.
constexpr std::uint64_t kHighestStep = 0xfffffff0;
constexpr std::size_t kLargestEnvironment = 64UL << 20;

struct Process {
  pid_t pid = 0;
  pid_t parent = 0;
  std::uint64_t started = 0;
};

/// proc_pid_stat(5): the name, in parentheses, may have any characters.
std::optional<Process> process(pid_t pid) {
  const auto text = read_file("/proc/" + std::to_string(pid) + "/stat", 1UL << 16);
  if (!text) return std::nullopt;
  Process out{pid};
  std::istringstream words(text->substr(std::min(text->rfind(')') + 1, text->size())));
  std::string state, skipped;
  words >> state >> out.parent;
  for (int field = 5; field < 22; ++field) words >> skipped;
  if (!(words >> out.started) || state == "Z" || state == "X") return std::nullopt;
  return out;
}

std::vector<pid_t> all_pids() {
  std::vector<pid_t> out;
  const std::unique_ptr<DIR, int (*)(DIR*)> listing(::opendir("/proc"), ::closedir);
  while (const dirent* entry = listing ? ::readdir(listing.get()) : nullptr)
    if (const auto pid = std::strtol(entry->d_name, nullptr, 10); pid > 0)
      out.push_back(static_cast<pid_t>(pid));
  return out;
}

/// Of this user's processes.
std::vector<pid_t> own_pids() {
  auto out = all_pids();
  std::erase_if(out, [](pid_t pid) {
    struct stat owner {};
    return ::stat(("/proc/" + std::to_string(pid)).c_str(), &owner) != 0 ||
           owner.st_uid != ::geteuid();
  });
  return out;
}

std::map<std::string, std::string, std::less<>> environment_of(const std::string& proc) {
  std::map<std::string, std::string, std::less<>> out;
  const auto text = read_file(proc + "/environ", kLargestEnvironment);
  std::istringstream entries(text ? *text : "");
  for (std::string entry; std::getline(entries, entry, '\0');)
    if (const auto equals = entry.find('='); equals != entry.npos)
      out.emplace(entry.substr(0, equals), entry.substr(equals + 1));
  return out;
}

std::optional<std::uint64_t> to_number(const std::string& text) {
  std::uint64_t out = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), out);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return out;
}

/// Where the kernel finds the program of a process; empty: not known.
std::string program_of(const std::string& proc) {
  char path[4096];
  const auto size = ::readlink((proc + "/exe").c_str(), path, sizeof path);
  return size > 0 ? std::string(path, static_cast<std::size_t>(size)) : "";
}

/// The words of a command line, empty for a process that has ended.
std::vector<std::string> words_of(const std::string& proc) {
  const auto text = read_file(proc + "/cmdline", kLargestEnvironment);
  std::istringstream entries(text ? *text : "");
  std::vector<std::string> out;
  for (std::string word; std::getline(entries, word, '\0');) out.push_back(word);
  return out;
}

/// What a session or fs-ship has srun start on each node, beside the ranks.
bool is_tool_of_node(const std::string& program, const std::string& proc) {
  const auto name = base_name(program);
  if (name != "fs-launch" && name != "fs-ship") return false;
  auto words = words_of(proc);
  words.resize(3);
  return words[1] == "--receive" ||
         (words[1] == "session" && (words[2] == "agent" || words[2] == "sweep"));
}

/// Hydra gives its ranks no name of their job; the proxy above them has its mpiexec's HOST:PORT.
std::string job_of_hydra(Process rank) {
  for (int above = 0; above < 32 && rank.parent > 1; ++above) {
    const auto proc = "/proc/" + std::to_string(rank.parent);
    const auto words = words_of(proc);
    if (!words.empty() && starts_ranks(words[0]))
      for (std::size_t i = 1; i + 1 < words.size(); ++i)
        if (words[i] == "--control-port") return words[i + 1];
    const auto next = process(rank.parent);
    if (!next) break;
    rank = *next;
  }
  return "";
}

/// A process that a launcher started, or a descendant of one, by its environment.
struct Found {
  Rank rank;
  std::string slurm_job, slurm_step;  ///< J, J.S
  bool is_named = true;               ///< else rank.job may not be its job's name
  bool is_in_step = false;
  bool is_tool = false;
  bool is_no_rank = false;
};

std::optional<Found> found_as(const Process& process) {
  const auto proc = "/proc/" + std::to_string(process.pid);
  const auto variables = environment_of(proc);
  const auto value = [&](const char* name) {
    const auto at = variables.find(name);
    return at == variables.end() ? std::string() : at->second;
  };
  const auto* name = std::ranges::find_if(
      kRankVariables, [&](const char* each) { return to_number(value(each)).has_value(); });
  if (name == std::end(kRankVariables)) return std::nullopt;
  Found out;
  const auto step = value("SLURM_STEP_ID");
  out.slurm_job = value("SLURM_JOB_ID");
  out.slurm_step = step.empty() ? out.slurm_job : out.slurm_job + "." + step;
  out.is_in_step = to_number(step).value_or(kHighestStep) < kHighestStep;
  const bool is_slurms = std::string_view(*name) == "SLURM_PROCID";
  if (is_slurms && !out.is_in_step) return std::nullopt;
  auto& rank = out.rank;
  rank.rank = static_cast<std::int64_t>(*to_number(value(*name)));
  rank.pid = process.pid;
  rank.started = process.started;
  rank.host = host_name();
  rank.program = program_of(proc);
  // With srun --mpi=pmix the namespace is the step.
  const auto pmix = value("PMIX_NAMESPACE");
  if (!is_slurms && !pmix.starts_with("slurm.pmix.")) {
    rank.job = pmix.empty() ? value("OMPI_MCA_ess_base_jobid") : pmix;
    if (rank.job.empty()) rank.job = job_of_hydra(process);
  }
  out.is_named = !rank.job.empty() || is_slurms || pmix.starts_with("slurm.pmix.");
  if (rank.job.empty()) rank.job = out.slurm_step;
  out.is_tool = is_tool_of_node(rank.program, proc);
  // A collecting agent (fs-launch --job) waits for the rank, its child.
  const auto collects = decode(value(kLaunchVariable));
  out.is_no_rank = rank.program.empty() || out.is_tool || starts_ranks(rank.program) ||
                   !value(kDirectoryVariable).empty() ||
                   (base_name(rank.program) == "fs-launch" && collects && !collects->job.empty());
  return out;
}

Fd open_process(pid_t pid) { return Fd(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0))); }

/// The descendants of this process, parents first.
std::vector<Process> descendants() {
  std::multimap<pid_t, Process> children;
  for (const auto pid : all_pids())
    if (const auto found = process(pid)) children.emplace(found->parent, *found);
  std::vector<Process> out;
  for (auto [at, end] = children.equal_range(::getpid()); at != end; ++at)
    out.push_back(at->second);
  for (std::size_t i = 0; i < out.size(); ++i)
    for (auto [at, end] = children.equal_range(out[i].pid); at != end; ++at)
      out.push_back(at->second);
  return out;
}

/// Reaps what has ended. false: no child is left.
bool reap() {
  pid_t got = 0;
  while ((got = ::waitpid(-1, nullptr, WNOHANG)) > 0) {
  }
  return got == 0;
}

}  // namespace

std::vector<Rank> ranks_here(const std::string& of) {
  std::vector<Found> all;
  std::set<std::string> tools;  // steps of sessions and of fs-ship, and so all that runs in them
  for (const auto pid : own_pids()) {
    const auto there = process(pid);
    auto found = there ? found_as(*there) : std::nullopt;
    if (!found) continue;
    if (found->is_tool && found->is_in_step) tools.insert(found->slurm_step);
    all.push_back(std::move(*found));
  }
  // A rank's child that hydra's proxy is no longer above.
  const auto is_orphan = [&](const Found& each) {
    return !each.is_named && std::ranges::any_of(all, [&](const Found& other) {
      return other.is_named && other.slurm_job == each.slurm_job &&
             other.rank.rank == each.rank.rank && other.rank.started <= each.rank.started;
    });
  };
  std::map<std::pair<std::string, std::int64_t>, Rank> oldest;
  for (const auto& each : all) {
    const auto& rank = each.rank;
    if (each.is_no_rank || is_orphan(each)) continue;
    if (each.is_in_step && tools.contains(each.slurm_step)) continue;
    if (!of.empty() && of != each.slurm_job && of != each.slurm_step && of != rank.job) continue;
    auto& known = oldest[{rank.job, rank.rank}];
    if (known.pid == 0 || std::tie(rank.started, rank.pid) < std::tie(known.started, known.pid))
      known = rank;
  }
  std::vector<Rank> out;
  for (auto& [key, rank] : oldest) out.push_back(std::move(rank));
  return out;
}

std::string job_of(pid_t pid) {
  const auto there = process(pid);
  const auto found = there ? found_as(*there) : std::nullopt;
  return found ? found->rank.job : "";
}

Result<OtherProcess> OtherProcess::open(pid_t pid) {
  Fd fd = open_process(pid);
  if (fd) return OtherProcess(std::move(fd), pid, 0);
  if (errno != ENOSYS) return fail_errno(std::to_string(pid), "is no process");
  const auto there = process(pid);
  if (!there) return fail_errno(std::to_string(pid), "is no process", ESRCH);
  return OtherProcess(Fd(), pid, there->started);
}

bool OtherProcess::has_ended() const {
  pollfd entry{fd_.get(), POLLIN, 0};
  if (fd_) return ::poll(&entry, 1, 0) > 0;
  const auto now = process(pid_);
  return !now || now->started != started_;
}

Result<bool> signal_rank(const Rank& rank, int signal) {
  const auto pid = static_cast<pid_t>(rank.pid);
  const Fd open = open_process(pid);
  if (!open && errno == ESRCH) return false;
  // The pid is still that process's if it is so after the descriptor was taken.
  const auto now = process(pid);
  if (!now || now->started != rank.started) return false;
  const long sent =
      open ? ::syscall(SYS_pidfd_send_signal, open.get(), signal, nullptr, 0) : ::kill(pid, signal);
  if (sent == 0) return true;
  if (errno == ESRCH) return false;
  return fail_errno("process " + std::to_string(pid), "cannot be signalled");
}

void end_marked(const std::string& variable, const std::string& value) {
  for (const auto& [signal, rounds] : {std::pair(SIGTERM, 100), std::pair(SIGKILL, 50)})
    for (int round = 0; round < rounds; ++round) {
      bool left = false;
      for (const auto pid : own_pids()) {
        const auto found = process(pid);
        if (!found || pid == ::getpid()) continue;
        const auto variables = environment_of("/proc/" + std::to_string(pid));
        const auto its = variables.find(variable);
        if (its == variables.end() || its->second != value) continue;
        left = true;
        Rank there;
        there.pid = pid;
        there.started = found->started;
        if (round == 0 || signal == SIGKILL) (void)signal_rank(there, signal);
        if (round == 0) (void)signal_rank(there, SIGCONT);
      }
      if (!left) return;
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
}

void end_descendants(std::chrono::milliseconds grace) {
  constexpr auto kPause = std::chrono::milliseconds(20);
  if (!reap()) return;
  for (const auto& each : descendants())
    for (const int signal : {SIGTERM, SIGCONT}) {
      Rank there;
      there.pid = each.pid;
      there.started = each.started;
      (void)signal_rank(there, signal);
    }
  for (const auto end = Clock::now() + grace; reap();) {
    if (Clock::now() >= end) break;
    std::this_thread::sleep_for(kPause);
  }
  for (const auto end = Clock::now() + std::chrono::seconds(5); reap() && Clock::now() < end;) {
    for (const auto& each : descendants())
      if (each.parent == ::getpid()) (void)::kill(each.pid, SIGKILL);
    std::this_thread::sleep_for(kPause);
  }
}

}  // namespace heddle::launch
