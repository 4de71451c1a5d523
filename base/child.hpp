// SPDX-License-Identifier: MIT
#pragma once

// Child processes: spawn() executes a program, fork_child(), Task and run_in_child() run a function
// of ours. This is the one place that calls fork() without exec.

#include <poll.h>
#include <sys/types.h>

#include <chrono>
#include <functional>
#include <optional>
#include <span>
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
  /// Kills it (SIGKILL) and does not wait for it, as it may stand in the kernel for long; when it
  /// has ended, a later fork_child() of this process reaps it.
  void abandon() noexcept;
  /// Gives up ownership: nobody kills or reaps it here.
  pid_t release() noexcept { return std::exchange(pid_, -1); }

 private:
  pid_t pid_ = -1;
};

/// 128+n for a signal, else the exit status, from what waitpid() gave.
int exit_status(int wait_status);

/// A descriptor that poll(2) finds readable when the child process `pid` has ended, which is the
/// caller's to reap: pidfd_open(2), before Linux 5.3 an event of a thread that waits for the child.
Result<Fd> watch_child_end(pid_t pid);

struct SpawnOptions {
  /// (descriptor here, number there): kept open in the child; all others follow O_CLOEXEC.
  std::vector<std::pair<int, int>> fds;
  /// The environment as NAME=value; nullopt: ours.
  std::optional<std::vector<std::string>> environment;
  /// A tracer of ours (strace -f) does not follow the child. For a daemon that a traced program
  /// waits for: strace would wait for a page that only the daemon, stopped for strace, can bring.
  bool untraced = false;
};

/// The pointers to `strings` that execve(2) takes; null at the end.
std::vector<char*> to_c_array(const std::vector<std::string>& strings);

/// fork + execve of `path` (no PATH search, no shell) with `argv` as an array. Signal mask cleared
/// and dispositions reset in the child. A failing exec is reported here, not as the child's status.
Result<Child> spawn(const std::string& path, const std::vector<std::string>& argv,
                    const SpawnOptions& options = {});

/// The directory of the running program's file: its siblings and ../libexec, ../lib are found from
/// there.
Result<std::string> own_program_dir();

/// Whether poll(2) has said something of `fd`, which may be none.
bool has_input(const std::vector<pollfd>& polled, const Fd& fd);

/// Closes every descriptor from 3 on but those in `keep`: a daemon must not hold its caller's pipes
/// open, nor a process that loses its rights keep what they opened. close_range(2), and before
/// Linux 5.9 one by one: those that /proc names, where there is one.
void close_fds_but(std::span<const int> keep);

struct ForkOptions {
  /// SIGKILL reaches the child when the thread that forked it ends.
  bool dies_with_parent = true;
  /// The descriptors from 3 on that the child keeps; nullopt: all of them.
  std::optional<std::vector<int>> keep;
  /// Standard input, output and error become /dev/null; `log` (if >= 0) stands for the last two.
  bool null_stdio = false;
  int log = -1;
  /// All signals unblocked and at their default dispositions.
  bool default_signals = true;
  /// Shown by ps(1), at most 15 bytes; nullptr: the parent's.
  const char* name = nullptr;
};

/// Forks a child that runs `body` and ends with the status that it returns, exit handlers and
/// destructors of the parent's objects not run. An exception that leaves `body` is reported in one
/// line and gives exit_failure.
/// Failure: fork(2)'s, errno in code(); nothing runs then.
Result<Child> fork_child(const ForkOptions& options, const std::function<int()>& body);

/// Work in a child, for a poll(2) loop that must not wait for it.
class Task {
 public:
  /// Starts `work`, which may take `limit` (0: as long as it likes).
  static Result<Task> start(ForkOptions options, std::chrono::milliseconds limit,
                            const std::function<Result<void>()>& work);

  /// Readable when it has ended.
  int ended() const { return ended_.get(); }
  bool has_ended(const std::vector<pollfd>& polled) const;
  /// When the limit is reached, monotonic_ms(); 0: never.
  std::int64_t late_at() const { return late_at_; }
  /// Of a task that has ended or is late: what `work` returned or threw, the error with code and
  /// hint. Failure ETIMEDOUT: it is late, killed and abandoned, for it may be waiting in the kernel
  /// for a file server and is not waited for; ECHILD: it died without an answer.
  Result<void> result();

 private:
  Task(Child child, Fd ended, Fd words, std::int64_t late_at)
      : child_(std::move(child)),
        ended_(std::move(ended)),
        words_(std::move(words)),
        late_at_(late_at) {}
  Child child_;
  Fd ended_;
  Fd words_;
  std::int64_t late_at_;
};

/// Runs `body` in a child of its own and waits at most `limit` for Task::result().
Result<void> run_in_child(std::chrono::milliseconds limit, const ForkOptions& options,
                          const std::function<Result<void>()>& body);
/// As run_in_child(); the result is what `body` returned.
Result<std::string> text_from_child(std::chrono::milliseconds limit,
                                    const std::function<Result<std::string>()>& body);

}  // namespace heddle
