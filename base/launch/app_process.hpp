// SPDX-License-Identifier: MIT
#pragma once

// Running APP so that it does not notice: its stdio, signals, job control and end are as without
// the program that runs it. A SignalRelay takes the signals that come for this process, an
// AppProcess is forked, mounts, and becomes APP; its end becomes this process's (end_like()).

#include <signal.h>
#include <sys/types.h>

#include <functional>
#include <string>
#include <vector>

#include "base/child.hpp"

namespace heddle {

/// How APP ended, and so how the program that ran it is to end.
struct AppEnd {
  int status = 0;  ///< exit status, 128+n for a signal
  int signal = 0;  ///< that ended it; 0: none
};

/// The last thing a program does that ran APP: a signal that ended APP ends this process too, so
/// that the caller sees what it would see of APP (a shell's loop stops at Ctrl-C only when its
/// child died of SIGINT). Without a core file: that is APP's. Returns `end.status` otherwise, and
/// where signals cannot end this process (the first of a container).
int end_like(AppEnd end);

/// Keeps signals from this process while it waits for APP, and hands them on. What the terminal
/// sends reaches the whole foreground group by itself (si_code SI_KERNEL) and is not doubled; what
/// a process sent to us alone is for APP. Constructed before fork; one at a time; single-threaded.
class SignalRelay {
 public:
  /// Blocks all signals that can be and opens a signalfd on them.
  static Result<SignalRelay> start();

  /// In the forked child, before exec: the caller's own mask and SIGCHLD disposition are put back.
  /// Async-signal-safe.
  void restore_in_child() const noexcept;
  /// Waits until `app` has ended, relaying signals; stops with it when it stops (job control).
  Result<AppEnd> wait(pid_t app);
  SignalRelay(SignalRelay&&) = default;
  SignalRelay& operator=(SignalRelay&&) = delete;
  /// Our own mask is put back as it was.
  ~SignalRelay();

 private:
  SignalRelay(Fd fd, const sigset_t& old_mask, const struct sigaction& old_chld)
      : fd_(std::move(fd)), old_mask_(old_mask), old_chld_(old_chld) {}
  void relay_pending(pid_t app);
  Fd fd_;
  sigset_t old_mask_;
  struct sigaction old_chld_;
};

struct AppCommand {
  std::string path;               ///< what is executed
  std::vector<std::string> argv;  ///< as the user gave it, argv[0] included
  std::vector<std::string> environment;
};

/// What APP's process does on its way from fork to exec, in this order; each may be empty. It is
/// single-threaded, so namespaces can be entered.
struct AppSetup {
  /// Moves the process into its namespace and mounts there. The device is sent to the parent, for
  /// the daemon.
  std::function<Result<Fd>()> mount;
  /// Runs when the parent's run() says that the daemon answers: the file system can be used.
  std::function<Result<void>()> enter;
  /// The last thing before exec.
  std::function<void()> before_exec;
};

/// APP's process, from its fork on: first it makes its private mount, then it waits for the daemon
/// to answer there, then it becomes APP. It stays in our process group, on our terminal; it gets
/// SIGKILL when we die. Destroyed before it was waited for, it is killed and reaped.
class AppProcess {
 public:
  /// Forks.
  static Result<AppProcess> start(const AppCommand& command, const AppSetup& setup,
                                  const SignalRelay& signals);

  /// The device that AppSetup::mount made, or what went wrong in the child.
  Result<Fd> take_fuse_fd();
  /// Lets it enter and execute APP. Failure: AppSetup::enter's; Cause::exec when APP cannot be
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
