// SPDX-License-Identifier: MIT
#include "bench/timing.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>

#include "base/child.hpp"

namespace heddle::bench {
namespace {

std::vector<char*> to_c_array(const std::vector<std::string>& strings) {
  std::vector<char*> out;
  for (const auto& s : strings) out.push_back(const_cast<char*>(s.c_str()));
  out.push_back(nullptr);
  return out;
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

double time_ms(const std::function<void()>& work) {
  const auto begin = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begin)
      .count();
}

double run_ms(const Command& command, unsigned copies) {
  std::vector<std::string> environment = command.env;
  for (char** entry = ::environ; *entry; ++entry) environment.emplace_back(*entry);
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
      if (error == 0) ::waitpid(pids[i], &statuses[i], 0);
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

void interleave(std::vector<Variant>& variants, unsigned rounds) {
  for (auto& variant : variants) variant.measure();  // warm
  for (unsigned round = 0; round < rounds; ++round)
    for (auto& variant : variants)
      if (round % variant.every == 0) variant.samples.push_back(variant.measure());
}

}  // namespace heddle::bench
