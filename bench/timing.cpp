// SPDX-License-Identifier: MIT
#include "bench/timing.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <numeric>

#include "base/child.hpp"

namespace heddle::bench {
namespace {

std::vector<char*> to_c_array(const std::vector<std::string>& strings) {
  std::vector<char*> out;
  for (const auto& s : strings) out.push_back(const_cast<char*>(s.c_str()));
  out.push_back(nullptr);
  return out;
}

using Clock = std::chrono::steady_clock;
Clock::time_point case_end = Clock::time_point::max();

int milliseconds_until(Clock::time_point end) {
  if (end == Clock::time_point::max()) return -1;
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(end - Clock::now()).count();
  return static_cast<int>(std::max<std::int64_t>(left, 0));
}

/// The status of waitpid(2). Ends the process, and throws, a minute after the case's end.
int wait_in_case(pid_t pid, const std::string& program) {
  const auto last =
      case_end == Clock::time_point::max() ? case_end : case_end + std::chrono::minutes(1);
  const Fd ended = value_or_throw(watch_child_end(pid));
  pollfd polled{ended.get(), POLLIN, 0};
  const bool in_time = ::poll(&polled, 1, milliseconds_until(last)) != 0;
  if (!in_time) {
    ::kill(pid, SIGTERM);
    if (::poll(&polled, 1, 5000) == 0) ::kill(pid, SIGKILL);
  }
  int status = 0;
  ::waitpid(pid, &status, 0);
  if (!in_time) throw Error(program, "was ended", "the time limit of its case is over");
  return status;
}

class SilentStdout {
 public:
  SilentStdout() {
    ::posix_spawn_file_actions_init(&actions_);
    ::posix_spawn_file_actions_addopen(&actions_, STDOUT_FILENO, "/dev/null", O_WRONLY, 0);
  }
  SilentStdout(const SilentStdout&) = delete;
  SilentStdout& operator=(const SilentStdout&) = delete;
  ~SilentStdout() { ::posix_spawn_file_actions_destroy(&actions_); }
  const posix_spawn_file_actions_t* get() const { return &actions_; }

 private:
  posix_spawn_file_actions_t actions_{};
};

}  // namespace

void begin_case(std::chrono::seconds limit) { case_end = Clock::now() + limit; }

bool case_is_over() { return Clock::now() >= case_end; }

double time_ms(const std::function<void()>& work) {
  const auto begin = Clock::now();
  work();
  return std::chrono::duration<double, std::milli>(Clock::now() - begin).count();
}

double run_ms(const Command& command, unsigned copies) {
  std::vector<std::string> environment = command.env;
  for (auto& entry : own_environment()) environment.push_back(std::move(entry));
  const auto argv = to_c_array(command.argv);
  const auto envp = to_c_array(environment);
  const SilentStdout silent;
  std::vector<pid_t> pids(copies);
  std::vector<int> statuses(copies);
  int error = 0;
  // posix_spawn is glibc's vfork: what it costs does not grow with this program's memory.
  const double ms = time_ms([&] {
    for (auto& pid : pids)
      error = std::max(
          error, ::posix_spawnp(&pid, argv[0], silent.get(), nullptr, argv.data(), envp.data()));
    for (std::size_t i = 0; i < pids.size(); ++i)
      if (error == 0) statuses[i] = wait_in_case(pids[i], command.argv[0]);
  });
  if (error != 0) throw Error::from_errno(command.argv[0], "cannot start", error);
  for (const int status : statuses)
    if (status != 0)
      throw Error(command.argv[0], fmt::format("exit status {}", exit_status(status)));
  return ms;
}

double median(std::vector<double> values) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  const std::size_t middle = values.size() / 2;
  return values.size() % 2 ? values[middle] : (values[middle - 1] + values[middle]) / 2;
}

bool has_samples_enough(const Variant& variant) {
  if (variant.samples.empty()) return false;
  const double spent = std::accumulate(variant.samples.begin(), variant.samples.end(), 0.0);
  return case_is_over() || spent + variant.samples.back() > kSecondsOfSamples * 1000;
}

void interleave(std::vector<Variant>& variants, unsigned rounds) {
  constexpr double kWarm = 10000;  // milliseconds
  for (auto& variant : variants)
    if (const double first = variant.measure(); first > kWarm) variant.samples.push_back(first);
  for (unsigned round = 0; round < rounds; ++round)
    for (auto& variant : variants)
      if (round % variant.every == 0 && !has_samples_enough(variant))
        variant.samples.push_back(variant.measure());
}

}  // namespace heddle::bench
