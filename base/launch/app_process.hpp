// SPDX-License-Identifier: MIT
#pragma once

// Runs APP transparently: stdio, signals, job control and exit are as without the program that runs
// it. A SignalRelay takes this process's signals; an AppProcess is forked, mounts, and executes
// APP; end_like() ends this process as APP ended.

#include <signal.h>
#include <sys/types.h>

#include <functional>
#include <string>
#include <vector>

#include "base/child.hpp"

namespace heddle {

/// How APP ended.
struct AppEnd {
  int status = 0;  ///< exit status, 128+n for a signal
  int signal = 0;  ///< the signal that ended it; 0: none
};

/// Ends this process by the signal that ended APP, so that the caller sees APP's status (a shell's
/// loop stops at Ctrl-C only when its child died of SIGINT), without a second core file. Returns
/// `end.status` if there is no signal, or if signals cannot end this process (a container's init).
int end_like(AppEnd end);

/// Raises the signal with its default action, whatever is blocked or handled.
void raise_default(int number);
/// The first child of any thread of `process`; 0: it has none.
pid_t child_of(pid_t process);

/// Blocks signals of this process while it waits for APP, and forwards them. Signals of the
/// terminal (si_code SI_KERNEL) reach the whole foreground group and are not forwarded. Constructed
/// before fork; one at a time; single-threaded.
class SignalRelay {
 public:
  /// Blocks all signals but those of faults, and opens a signalfd.
  static Result<SignalRelay> start();

  /// Restores the caller's mask and SIGCHLD disposition, in the forked child before exec.
  /// Async-signal-safe.
  void restore_in_child() const noexcept;
  /// Waits until `app` has ended and forwards signals; stops when it stops (job control).
  Result<AppEnd> wait(pid_t app);
  /// Signals are for the first child of `app`, while it has one: `app` is a tracer that ignores
  /// them.
  void pass_to_child() { to_child_ = true; }
  /// Signals for which `has_got` is true were sent to the process group, and are not forwarded to
  /// an APP in it. Without this a signal of kill(2) to the group reaches APP twice.
  void leave_to_group(std::function<bool(int number)> has_got) { group_got_ = std::move(has_got); }
  SignalRelay(SignalRelay&&) = default;
  SignalRelay& operator=(SignalRelay&&) = delete;
  /// Restores the mask.
  ~SignalRelay();

 private:
  SignalRelay(Fd fd, const sigset_t& old_mask, const struct sigaction& old_chld)
      : fd_(std::move(fd)), old_mask_(old_mask), old_chld_(old_chld) {}
  void relay_pending(pid_t app);
  Fd fd_;
  sigset_t old_mask_;
  struct sigaction old_chld_;
  bool to_child_ = false;
  std::function<bool(int number)> group_got_;
};

struct AppCommand {
  std::string path;               ///< the file to execute
  std::vector<std::string> argv;  ///< as given, argv[0] included
  std::vector<std::string> environment;
};

/// Becomes the command: execve(2), and /bin/sh for a script without `#!`, as execvp(3) and shells
/// do. Result: the errno.
int execute(const AppCommand& command);

/// What APP's process does between fork and exec, in this order; each may be empty. It is
/// single-threaded, so namespaces can be entered.
struct AppSetup {
  /// Enters a namespace and mounts there. The parent gets the device for the daemon.
  std::function<Result<Fd>()> mount;
  /// Called from the parent's run() on, when the file system can be used.
  std::function<Result<void>()> enter;
  /// Called immediately before exec.
  std::function<void()> before_exec;
};

/// APP's process: makes its private mount, waits until the daemon serves it, and executes APP. It
/// stays in this process group and on this terminal, and gets SIGKILL when this process dies. The
/// destructor kills and reaps it.
class AppProcess {
 public:
  /// Forks.
  static Result<AppProcess> start(const AppCommand& command, const AppSetup& setup,
                                  const SignalRelay& signals);

  /// The device of AppSetup::mount, or its failure.
  Result<Fd> take_fuse_fd();
  /// Continues with AppSetup::enter and executes APP. Failure: enter's; Cause::exec: APP cannot be
  /// executed.
  Result<void> run();
  Result<AppEnd> wait(SignalRelay& signals);
  pid_t pid() const noexcept { return child_.pid(); }

 private:
  AppProcess(Child child, Fd socket) : child_(std::move(child)), socket_(std::move(socket)) {}
  Child child_;
  Fd socket_;
};

}  // namespace heddle
