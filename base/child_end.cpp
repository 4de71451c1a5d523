// SPDX-License-Identifier: MIT
#include "base/child_end.hpp"

#include <fcntl.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <system_error>
#include <thread>

namespace heddle {
namespace {

/// Its signals are the process's other threads' to take.
Result<void> start_waiting(pid_t pid, Fd end) {
  sigset_t all, before;
  ::sigfillset(&all);
  ::pthread_sigmask(SIG_BLOCK, &all, &before);
  Result<void> started;
  try {
    std::thread([pid, end = std::move(end)]() {
      siginfo_t info;
      while (::waitid(P_PID, static_cast<id_t>(pid), &info, WEXITED | WNOWAIT) != 0 &&
             errno == EINTR) {
      }
      (void)::eventfd_write(end.get(), 1);
    }).detach();
  } catch (const std::system_error& error) {
    started = fail_errno("", "cannot start a thread", error.code().value());
  }
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
  return started;
}

}  // namespace

Result<Fd> watch_child_end(pid_t pid) {
  Fd pidfd(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));
  if (pidfd) return pidfd;
  // EPERM: older runtimes' filters answer that to what they do not know.
  if (errno != ENOSYS && errno != EPERM) return fail_errno("", "cannot wait for a child process");
  // No pipe, which would end only with all that were forked meanwhile.
  Fd event(::eventfd(0, EFD_CLOEXEC));
  Fd other(event ? ::fcntl(event.get(), F_DUPFD_CLOEXEC, 3) : -1);
  if (!other) return fail_errno("", "cannot wait for a child process");
  if (auto started = start_waiting(pid, std::move(other)); !started)
    return fail(std::move(started.error()));
  return event;
}

}  // namespace heddle
