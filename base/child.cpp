// SPDX-License-Identifier: MIT
#include "base/child.hpp"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <algorithm>

#include "base/close_fds.hpp"
#include "base/exit_code.hpp"
#include "base/log.hpp"
#include "base/packet.hpp"
#include "base/socket_pair.hpp"
#include "base/try.hpp"

namespace heddle {
namespace {

void reset_signals() {
  for (int n = 1; n < NSIG; ++n) ::signal(n, SIG_DFL);
  sigset_t none;
  ::sigemptyset(&none);
  ::sigprocmask(SIG_SETMASK, &none, nullptr);
}

void redirect_stdio(int log) {
  const int null = ::open("/dev/null", O_RDWR | O_CLOEXEC);
  if (null < 0) return;
  ::dup2(null, 0);
  ::dup2(log >= 0 ? log : null, 1);
  ::dup2(log >= 0 ? log : null, 2);
  if (null > 2) ::close(null);
}

int run_guarded(const std::function<int()>& body) {
  try {
    return body();
  } catch (const Error& error) {
    report(error);
  } catch (const std::exception& error) {
    report(Error("", error.what()));
  }
  return exit_failure;
}

}  // namespace

Result<Child> fork_child(const ForkOptions& options, const std::function<int()>& body) {
  const pid_t parent = ::getpid();
  const pid_t pid = ::fork();
  if (pid < 0) return fail_errno("", "cannot start a process");
  if (pid > 0) return Child(pid);
  if (options.dies_with_parent) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (::getppid() != parent) ::_exit(exit_failure);
  }
  if (options.name) ::prctl(PR_SET_NAME, options.name);
  if (options.default_signals) reset_signals();
  if (options.null_stdio) redirect_stdio(options.log);
  if (options.keep) close_fds_but(*options.keep);
  ::_exit(run_guarded(body));
}

Result<void> run_in_child(std::chrono::milliseconds limit, const ForkOptions& options,
                          const std::function<Result<void>()>& body) {
  auto sockets = TRY(make_socket_pair());
  ForkOptions with_socket = options;
  if (with_socket.keep) with_socket.keep->push_back(sockets.other.get());
  auto child = TRY(fork_child(with_socket, [&] {
    sockets.one.reset();
    Result<void> done;
    try {
      done = body();
    } catch (const Error& error) {
      done = fail(Error(error));
    } catch (const std::exception& error) {
      done = fail("", error.what());
    }
    if (!done) send_failure(sockets.other.get(), done.error(), FailureCode::sent);
    return done ? exit_done : exit_failure;
  }));
  sockets.other.reset();
  const auto ended = child.wait_for(limit);
  if (!ended || !*ended) {
    ::kill(child.release(), SIGKILL);
    if (!ended) return fail(Error(ended.error()));
    return fail_errno("", "gave up waiting", ETIMEDOUT);
  }
  if (**ended == exit_done) return {};
  const auto said = receive_packet(sockets.one.get(), std::chrono::milliseconds(0));
  if (!said) return fail_errno("", "the process ended without an answer", ECHILD);
  return fail(received_failure(said->text));
}

}  // namespace heddle
