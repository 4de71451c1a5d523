// SPDX-License-Identifier: MIT
#pragma once

// Child processes: spawn() executes a program; fork_child(), Task and run_in_child() run a
// function.

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

/// A child process. Move-only; the destructor kills (SIGKILL) and reaps it if it still runs.
class Child {
 public:
  /// Takes over a forked pid.
  explicit Child(pid_t pid) noexcept : pid_(pid) {}
  Child(Child&& other) noexcept : pid_(std::exchange(other.pid_, -1)) {}
  Child& operator=(Child&& other) noexcept;
  ~Child();

  pid_t pid() const noexcept { return pid_; }
  /// Waits for its end. Result: its exit status, 128+n for signal n.
  Result<int> wait();
  /// As wait(); nullopt after `limit`, and the child still runs.
  Result<std::optional<int>> wait_for(std::chrono::milliseconds limit);
  /// Kills it (SIGKILL) without waiting, since it may be blocked in the kernel for long. A later
  /// fork_child() of this process reaps it.
  void abandon() noexcept;
  /// Gives up ownership: the caller reaps it.
  pid_t release() noexcept { return std::exchange(pid_, -1); }

 private:
  pid_t pid_ = -1;
};

/// The exit status in a status of waitpid(2), 128+n for signal n.
int exit_status(int wait_status);

/// A descriptor that poll(2) finds readable when the child process `pid` has ended; the caller
/// reaps it. pidfd_open(2), or before Linux 5.3 the event of a thread that waits for the child.
Result<Fd> watch_child_end(pid_t pid);

struct SpawnOptions {
  /// (descriptor here, number in the child); all others follow O_CLOEXEC.
  std::vector<std::pair<int, int>> fds;
  /// The environment as NAME=value; nullopt: inherited.
  std::optional<std::vector<std::string>> environment;
  /// A tracer of this process (strace -f) does not follow the child. For a daemon that serves a
  /// traced program: strace would wait for a page of the daemon, which is stopped for strace.
  bool untraced = false;
};

/// Whether a tracer with a seccomp filter (strace --seccomp-bpf) has this process. An untraced
/// child cannot be started then: its filtered system calls would fail with ENOSYS (seccomp(2),
/// SECCOMP_RET_TRACE). Any filter counts, as what it does cannot be known.
bool is_traced_by_filter();

/// A null-terminated array for execve(2) of pointers to `strings`.
std::vector<char*> to_c_array(const std::vector<std::string>& strings);

/// fork and execve of `path`, without a PATH search, with an empty signal mask and default
/// dispositions. A failing exec is an error here and not the child's status.
Result<Child> spawn(const std::string& path, const std::vector<std::string>& argv,
                    const SpawnOptions& options = {});

/// The directory of the running program's file, from which its installation is found.
Result<std::string> own_program_dir();

/// Whether poll(2) has set an event for `fd`; false for no descriptor.
bool has_input(const std::vector<pollfd>& polled, const Fd& fd);

/// Closes every descriptor from 3 on but those in `keep`: a daemon must not hold its caller's pipes
/// open, and a process that drops rights must not keep what they opened. close_range(2), before
/// Linux 5.9 one by one.
void close_fds_but(std::span<const int> keep);

struct ForkOptions {
  /// SIGKILL reaches the child when the thread that forked it ends.
  bool dies_with_parent = true;
  /// The descriptors from 3 on that the child keeps; nullopt: all of them.
  std::optional<std::vector<int>> keep;
  /// Standard input, output and error become /dev/null, or the last two `log` if it is >= 0.
  bool null_stdio = false;
  int log = -1;
  /// All signals unblocked and at their default dispositions.
  bool default_signals = true;
  /// Shown by ps(1), at most 15 bytes; nullptr: the parent's.
  const char* name = nullptr;
  bool untraced = false;  ///< as SpawnOptions::untraced
};

/// Forks a child that runs `body` and ends with its status, without exit handlers or destructors of
/// the parent's objects. An exception from `body` is reported in one line and gives exit_failure.
/// Failure: fork(2)'s.
Result<Child> fork_child(const ForkOptions& options, const std::function<int()>& body);

/// Work in a child process, for a poll(2) loop that must not block.
class Task {
 public:
  /// Starts `work` with a time limit; 0: none.
  static Result<Task> start(ForkOptions options, std::chrono::milliseconds limit,
                            const std::function<Result<void>()>& work);

  /// A descriptor that is readable when it has ended.
  int ended() const { return ended_.get(); }
  bool has_ended(const std::vector<pollfd>& polled) const;
  /// When the limit is reached, monotonic_ms(); 0: never.
  std::int64_t late_at() const { return late_at_; }
  /// For a task that has ended or is late: what `work` returned or threw. ETIMEDOUT: it is late,
  /// and is killed and abandoned, since it may be blocked in the kernel; ECHILD: it died without an
  /// answer.
  Result<void> result();

 private:
  Task(Child child, Fd ended, Fd socket, std::int64_t late_at)
      : child_(std::move(child)),
        ended_(std::move(ended)),
        socket_(std::move(socket)),
        late_at_(late_at) {}
  Child child_;
  Fd ended_;
  Fd socket_;
  std::int64_t late_at_;
};

/// Runs `body` in a child process and waits at most `limit` for Task::result().
Result<void> run_in_child(std::chrono::milliseconds limit, const ForkOptions& options,
                          const std::function<Result<void>()>& body);
/// As run_in_child(); the result is what `body` returned.
Result<std::string> text_from_child(std::chrono::milliseconds limit,
                                    const std::function<Result<std::string>()>& body);

/// This process's variables, NAME=VALUE each.
std::vector<std::string> own_environment();

}  // namespace heddle
