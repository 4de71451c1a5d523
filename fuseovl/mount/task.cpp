// SPDX-License-Identifier: MIT
#include "fuseovl/mount/task.hpp"

#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <unistd.h>

#include "base/child_end.hpp"
#include "base/exit_code.hpp"
#include "base/monotonic.hpp"
#include "base/socket_pair.hpp"
#include "fuseovl/mount/background.hpp"

namespace heddle {
namespace {

/// Nothing may unwind into what this process has of its maker's stack.
Result<void> try_to(const std::function<Result<void>()>& work) {
  try {
    return work();
  } catch (const std::exception& error) {
    return fail(Error({}, error.what()));
  }
}

[[noreturn]] void live(const std::function<Result<void>()>& work, int words, int kept) {
  const int open[] = {words, kept};
  close_fds_but(open);
  sigset_t none;
  ::sigemptyset(&none);
  ::sigprocmask(SIG_SETMASK, &none, nullptr);
  const auto done = try_to(work);
  if (!done) send_failure(words, done.error(), FailureCode::sent);
  ::_exit(done ? exit_done : exit_failure);
}

}  // namespace

Result<Task> Task::start(const std::function<Result<void>()>& work, std::chrono::milliseconds limit,
                         int kept) {
  auto sockets = make_socket_pair();
  if (!sockets) return fail(std::move(sockets.error()));
  const pid_t parent = ::getpid();
  const pid_t pid = ::fork();
  if (pid < 0) return fail_errno("", "cannot start a process");
  if (pid == 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (::getppid() != parent) ::_exit(exit_failure);
    live(work, sockets->other.get(), kept);
  }
  Child child(pid);
  auto ended = watch_child_end(pid);
  if (!ended) return fail(std::move(ended.error()));
  return Task(std::move(child), std::move(*ended), std::move(sockets->one),
              limit.count() > 0 ? monotonic_ms() + limit.count() : 0);
}

Result<void> Task::result() {
  pollfd entry{ended(), POLLIN, 0};
  if (::poll(&entry, 1, 0) == 0) {
    // It may wait for what cannot be interrupted: nor is its end waited for.
    ::kill(child_.release(), SIGKILL);
    return fail(Error::with_code(ETIMEDOUT, "fs-mount", "it takes too long"));
  }
  const auto status = child_.wait();
  if (!status) return fail(status.error());
  if (*status == exit_done) return {};
  const auto said = receive_fd(words_.get());  // never a descriptor
  if (said || said.error().code() == ECONNRESET) return fail("fs-mount", "it ended without a word");
  return fail(said.error());
}

}  // namespace heddle
