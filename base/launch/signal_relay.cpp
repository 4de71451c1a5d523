// SPDX-License-Identifier: MIT
#include "base/launch/signal_relay.hpp"

#include <poll.h>
#include <sys/signalfd.h>
#include <sys/wait.h>

#include "base/child.hpp"

namespace heddle {

Result<SignalRelay> SignalRelay::start() {
  sigset_t all;
  ::sigfillset(&all);
  // A fault of our own must still kill us.
  for (int n : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT, SIGSYS, SIGTRAP}) ::sigdelset(&all, n);
  sigset_t old_mask;
  if (::sigprocmask(SIG_BLOCK, &all, &old_mask) != 0) return fail_errno("", "cannot block signals");
  // An inherited SIG_IGN for SIGCHLD would reap APP behind our back.
  struct sigaction defaults {};
  defaults.sa_handler = SIG_DFL;
  struct sigaction old_chld {};
  ::sigaction(SIGCHLD, &defaults, &old_chld);
  Fd fd(::signalfd(-1, &all, SFD_CLOEXEC | SFD_NONBLOCK));
  if (!fd) return fail_errno("", "cannot make a signalfd");
  return SignalRelay(std::move(fd), old_mask, old_chld);
}

void SignalRelay::restore_in_child() const noexcept {
  ::sigaction(SIGCHLD, &old_chld_, nullptr);
  ::sigprocmask(SIG_SETMASK, &old_mask_, nullptr);
}

SignalRelay::~SignalRelay() {
  if (fd_) restore_in_child();
}

void SignalRelay::relay_pending(pid_t app) {
  signalfd_siginfo info{};
  while (::read(fd_.get(), &info, sizeof(info)) == static_cast<ssize_t>(sizeof(info))) {
    const int number = static_cast<int>(info.ssi_signo);
    const bool from_terminal = info.ssi_code == SI_KERNEL;
    if (number == SIGCHLD || number == SIGPIPE || from_terminal) continue;
    ::kill(app, number);
  }
}

Result<int> SignalRelay::wait(pid_t app) {
  pollfd entry{fd_.get(), POLLIN, 0};
  for (;;) {
    int status = 0;
    const pid_t got = ::waitpid(app, &status, WNOHANG | WUNTRACED);
    // At once: the signal that said it may have been taken.
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return fail_errno("", "cannot wait for the program");
    if (got == app && WIFSTOPPED(status)) {
      // The shell must see its job stop. On SIGCONT we go on; APP, in the same group, got it too
      // when the shell sent it, and gets it from us when it was sent to us alone.
      ::raise(SIGSTOP);
      ::kill(app, SIGCONT);
      continue;
    }
    if (got == app) {
      if (WIFSIGNALED(status)) ended_by_ = WTERMSIG(status);
      // What came for APP and found it gone: nobody's now, and no reason for us to end.
      signalfd_siginfo late{};
      while (::read(fd_.get(), &late, sizeof(late)) > 0) {
      }
      return exit_status(status);
    }
    if (::poll(&entry, 1, -1) < 0 && errno != EINTR)
      return fail_errno("", "cannot wait for signals");
    relay_pending(app);
  }
}

}  // namespace heddle
