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
#include <sstream>
#include <thread>

#include "base/fd.hpp"
#include "base/launch/rank.hpp"
#include "base/rank_mark.hpp"
#include "base/try.hpp"
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

/// The rank that `found` is by its environment.
std::optional<Rank> rank_of(const Process& found, const std::string& of) {
  const auto proc = "/proc/" + std::to_string(found.pid);
  const auto variables = environment_of(proc);
  const auto value = [&](const char* name) {
    const auto at = variables.find(name);
    return at == variables.end() ? std::string() : at->second;
  };
  const auto* name = std::ranges::find_if(
      kRankVariables, [&](const char* each) { return to_number(value(each)).has_value(); });
  if (name == std::end(kRankVariables)) return std::nullopt;
  const bool is_slurm = std::string_view(*name) == "SLURM_PROCID";
  const auto step = value("SLURM_STEP_ID");
  auto job = value("SLURM_JOB_ID");
  if (is_slurm && to_number(step).value_or(kHighestStep) >= kHighestStep) return std::nullopt;
  const auto slurm = step.empty() ? job : job + "." + step;
  const char* own_job = std::getenv("SLURM_JOB_ID");
  const char* own_step = std::getenv("SLURM_STEP_ID");
  if (own_job && own_step && slurm == std::string(own_job) + "." + own_step) return std::nullopt;
  if (!of.empty() && of != job && of != slurm) return std::nullopt;
  Rank out;
  out.rank = static_cast<std::int64_t>(*to_number(value(*name)));
  out.pid = found.pid;
  out.started = found.started;
  out.host = host_name();
  out.job = slurm;
  if (!is_slurm)
    for (const char* each : {"PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid"})
      if (out.job.empty()) out.job = value(each);
  char path[4096];
  const auto size = ::readlink((proc + "/exe").c_str(), path, sizeof path);
  if (size > 0) out.program.assign(path, static_cast<std::size_t>(size));
  if (out.program.empty() || starts_ranks(out.program)) return std::nullopt;
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
  std::map<std::pair<std::string, std::int64_t>, Rank> oldest;
  for (const auto pid : own_pids()) {
    const auto found = process(pid);
    auto rank = found ? rank_of(*found, of) : std::nullopt;
    if (!rank) continue;
    auto& known = oldest[{rank->job, rank->rank}];
    if (known.pid == 0 || rank->started < known.started ||
        (rank->started == known.started && rank->pid < known.pid))
      known = std::move(*rank);
  }
  std::vector<Rank> out;
  for (auto& [key, rank] : oldest) out.push_back(std::move(rank));
  return out;
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

void end_left_behind(const std::string& directory) {
  for (const auto& [signal, rounds] : {std::pair(SIGTERM, 100), std::pair(SIGKILL, 50)})
    for (int round = 0; round < rounds; ++round) {
      bool left = false;
      for (const auto pid : own_pids()) {
        const auto found = process(pid);
        if (!found || pid == ::getpid()) continue;
        const auto variables = environment_of("/proc/" + std::to_string(pid));
        const auto its = variables.find("HEDDLE_SESSION_DIR");
        if (its == variables.end() || its->second != directory) continue;
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
