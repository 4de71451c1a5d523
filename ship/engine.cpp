// SPDX-License-Identifier: MIT
#include "ship/engine.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <atomic>
#include <cctype>
#include <iterator>
#include <thread>

#include "base/child.hpp"
#include "base/exit_code.hpp"
#include "base/find_program.hpp"
#include "base/try.hpp"

namespace heddle::ship {
namespace {

constexpr std::chrono::seconds kEndWithin{2};
constexpr int kSignals[] = {SIGINT, SIGTERM, SIGHUP, SIGQUIT};

/// The engine's process group, which a terminal's Ctrl-C does not reach.
std::atomic<pid_t> engine_group{0};

void pass_on(int signal) {
  if (const pid_t group = engine_group; group > 0) ::kill(-group, signal);
  ::signal(signal, SIG_DFL);
  ::raise(signal);  // delivered on return
}

/// While it lives, signals that end this program go to the engine's group, too; until lead_to()
/// they wait.
class SignalsForEngine {
 public:
  SignalsForEngine() {
    sigset_t set;
    ::sigemptyset(&set);
    for (const int signal : kSignals) ::sigaddset(&set, signal);
    ::pthread_sigmask(SIG_BLOCK, &set, &before_);
    struct sigaction action {};
    action.sa_handler = pass_on;
    action.sa_flags = SA_RESTART;
    for (std::size_t i = 0; i < std::size(kSignals); ++i) {
      ::sigaction(kSignals[i], nullptr, &old_[i]);
      if (old_[i].sa_handler == SIG_DFL) ::sigaction(kSignals[i], &action, nullptr);
    }
  }
  SignalsForEngine(const SignalsForEngine&) = delete;
  SignalsForEngine& operator=(const SignalsForEngine&) = delete;
  ~SignalsForEngine() {
    ::pthread_sigmask(SIG_SETMASK, &before_, nullptr);
    for (std::size_t i = 0; i < std::size(kSignals); ++i)
      ::sigaction(kSignals[i], &old_[i], nullptr);
    engine_group = 0;
  }
  void lead_to(pid_t group) {
    engine_group = group;
    ::pthread_sigmask(SIG_SETMASK, &before_, nullptr);
  }

 private:
  sigset_t before_{};
  std::array<struct sigaction, std::size(kSignals)> old_{};
};

/// SIGTERM to the engine and what it has started, then SIGKILL to what is left.
void end_group(Child& engine) {
  const pid_t group = engine.pid();
  const auto end = std::chrono::steady_clock::now() + kEndWithin;
  ::kill(-group, SIGTERM);
  (void)engine.wait_for(kEndWithin);
  while (::kill(-group, 0) == 0 && std::chrono::steady_clock::now() < end)
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  ::kill(-group, SIGKILL);
  engine.abandon();  // it may be blocked in the kernel
}

}  // namespace

Words split_words(const std::string& text) { return CLI::detail::split_up(text); }

Words fill_in(Words words, const std::vector<std::pair<std::string, std::string>>& values) {
  for (auto& word : words)
    for (std::size_t at = 0; (at = word.find('{', at)) != word.npos;) {
      const auto end = word.find('}', at);
      const auto name = end == word.npos ? "" : word.substr(at + 1, end - at - 1);
      const auto value =
          std::ranges::find(values, name, &std::pair<std::string, std::string>::first);
      if (value == values.end()) {
        ++at;
        continue;
      }
      word.replace(at, end - at + 1, value->second);
      at += value->second.size();  // braces of a path are no placeholders
    }
  return words;
}

Result<Words> words_printed_by(const Words& command, std::chrono::milliseconds limit) {
  const auto program = TRY(find_program(command[0]));
  const auto done = TRY(run_and_read(program, command, {.limit = limit, .most_bytes = 64U << 20}));
  if (done.status != 0) return fail(command[0], "failed");
  return split_words(done.out);
}

Words own_slurm(const std::string& program, bool in_job) {
  constexpr std::string_view kKept[] = {"SLURM_CLUSTERS", "SLURM_WORKING_CLUSTER", "SLURM_JWT"};
  constexpr std::string_view kJob[] = {"SLURM_JOB_ID",   "SLURM_JOBID",    "SLURM_JOB_NODELIST",
                                       "SLURM_NODELIST", "SLURM_HET_SIZE", "SLURM_RESTART_COUNT"};
  Words out = {"env"};
  for (const auto& entry : own_environment()) {
    const auto name = entry.substr(0, entry.find('='));
    const bool is_slurms =
        name.starts_with("SLURM_") || name.starts_with("SRUN_") || name.starts_with("SBCAST_");
    const bool is_jobs = std::ranges::count(kJob, name) != 0 || name.find("_GROUP_") != name.npos;
    if (is_slurms && !name.starts_with("SLURM_CONF") && std::ranges::count(kKept, name) == 0 &&
        !(in_job && is_jobs))
      out.insert(out.end(), {"-u", name});
  }
  out.push_back(program);
  return out;
}

Words sbcast() {
  auto out = own_slurm("sbcast");
  out.insert(out.end(), {"--force", "--jobid={step}", "{src}", "{dst}"});
  return out;
}

std::chrono::seconds copy_time(std::uint64_t bytes) {
  constexpr std::uint64_t kSlowest = 10'000'000;  // a second
  return std::chrono::seconds(60 + bytes / kSlowest);
}

Result<void> run_engine(const Words& words, std::chrono::milliseconds limit) {
  const auto program = TRY(find_program(words[0]));
  const Fd null = TRY(open_file("/dev/null", O_RDWR));
  const auto argv = to_c_array(words);
  Pipe failed = TRY(make_pipe());
  ForkOptions options;
  options.dies_with_parent = false;  // it ends its nodes' processes when it gets a signal
  SignalsForEngine signals;
  auto child = TRY(fork_child(options, [&] {
    if (::setpgid(0, 0) == 0 && ::dup2(null.get(), STDIN_FILENO) >= 0 &&
        ::dup2(STDERR_FILENO, STDOUT_FILENO) >= 0)
      ::execv(program.c_str(), argv.data());
    const int error = errno;
    (void)write_all(failed.write_end.get(), std::to_string(error), "pipe");
    return exit_failure;
  }));
  (void)::setpgid(child.pid(), child.pid());  // also here: the child may not have come to it
  signals.lead_to(child.pid());
  failed.write_end.reset();
  const auto error = TRY(read_all(failed.read_end.get(), "pipe", 16));
  if (!error.empty()) return fail_errno(program, "cannot start", std::stoi(error));
  const auto ended = TRY(child.wait_for(limit));
  if (ended) return {};
  end_group(child);
  return fail(Error::with_code(
      ETIMEDOUT, words[0], "stopped",
      fmt::format("it takes longer than {:.1f} s", std::chrono::duration<double>(limit).count())));
}

bool is_plain_name(const std::string& text) {
  return !text.empty() && text.front() != '-' && text.front() != '.' &&
         std::ranges::all_of(text, [](unsigned char c) {
           return std::isalnum(c) != 0 || c == '.' || c == '_' || c == '-';
         });
}

}  // namespace heddle::ship
