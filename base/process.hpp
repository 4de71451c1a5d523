// SPDX-License-Identifier: MIT
#pragma once

#include <sys/types.h>

#include <chrono>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/fd.hpp"

namespace heddle {

/// A child of ours. Move-only; the destructor kills (SIGKILL) and reaps one that still runs.
class Child {
 public:
  /// Takes over a forked pid.
  explicit Child(pid_t pid) noexcept : pid_(pid) {}
  Child(Child&& other) noexcept : pid_(std::exchange(other.pid_, -1)) {}
  Child& operator=(Child&& other) noexcept;
  ~Child();

  pid_t pid() const noexcept { return pid_; }
  /// Blocks until it ends. Result: its exit status, 128+n for signal n.
  Result<int> wait();
  /// As wait(), but gives up at the deadline: nullopt, the child still runs.
  Result<std::optional<int>> wait_for(std::chrono::milliseconds limit);
  /// Gives up ownership: nobody kills or reaps it here.
  pid_t release() noexcept { return std::exchange(pid_, -1); }

 private:
  pid_t pid_ = -1;
};

/// 128+n for a signal, else the exit status, from what waitpid() gave.
int exit_status(int wait_status);

struct SpawnOptions {
  /// (descriptor here, number there): kept open in the child; all others follow O_CLOEXEC.
  std::vector<std::pair<int, int>> fds;
  /// The environment as NAME=value; nullopt: ours.
  std::optional<std::vector<std::string>> environment;
  /// A tracer of ours (strace -f) does not follow the child. For a daemon that a traced program
  /// waits for: strace would wait for a page that only the daemon, stopped for strace, can bring.
  bool untraced = false;
};

/// fork + execve of `path` (no PATH search, no shell) with `argv` as an array. Signal mask cleared
/// and dispositions reset in the child. A failing exec is reported here, not as the child's status.
Result<Child> spawn(const std::string& path, const std::vector<std::string>& argv,
                    const SpawnOptions& options = {});

/// The folder of the running program's file: where its siblings and ../libexec, ../lib are found.
Result<std::string> own_program_dir();

}  // namespace heddle
