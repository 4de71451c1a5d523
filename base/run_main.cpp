// SPDX-License-Identifier: MIT
#include "base/run_main.hpp"

#include <fcntl.h>
#include <malloc.h>
#include <pthread.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include <cstdio>

#include "base/exit_code.hpp"
#include "base/log.hpp"
#include "base/result.hpp"

namespace heddle {

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

namespace {

/// Under a small `ulimit -v`, the stacks of threads (8 MB each) and malloc's arenas (64 MB each)
/// would take nearly all of it.
void fit_in_address_space() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_AS, &limit) != 0 || limit.rlim_cur > (rlim_t{4} << 30)) return;
  constexpr std::size_t kStack = std::size_t{512} << 10;
  (void)::mallopt(M_ARENA_MAX, 1);
  pthread_attr_t attributes;
  if (::pthread_attr_init(&attributes) != 0) return;
  if (::pthread_attr_setstacksize(&attributes, kStack) == 0)
    (void)::pthread_setattr_default_np(&attributes);
  (void)::pthread_attr_destroy(&attributes);
}

}  // namespace

void ignore_file_size_signal() {
  struct sigaction action {
  }, before{};
  action.sa_handler = [](int) {};
  if (::sigaction(SIGXFSZ, nullptr, &before) == 0 && before.sa_handler == SIG_DFL)
    ::sigaction(SIGXFSZ, &action, nullptr);
}

int run_main(const char* program, const std::function<int()>& body) {
  set_program_name(program);
  reserve_standard_fds();
  ignore_file_size_signal();
  fit_in_address_space();
  return run_guarded(body);
}

namespace {

sigset_t only_sigpipe() {
  sigset_t set;
  ::sigemptyset(&set);
  ::sigaddset(&set, SIGPIPE);
  return set;
}

bool sigpipe_is_pending() {
  sigset_t pending;
  return ::sigpending(&pending) == 0 && ::sigismember(&pending, SIGPIPE) == 1;
}

}  // namespace

void reserve_standard_fds() {
  for (const int number : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    if (::fcntl(number, F_GETFD) >= 0) continue;
    // open(2) returns this number, the lowest free one. The access mode makes its use fail (EBADF).
    const int mode = number == STDIN_FILENO ? O_WRONLY : O_RDONLY;
    (void)::open("/dev/null", mode | O_CLOEXEC);
  }
}

Result<void> flush_stdout() {
  if (std::fflush(stdout) != 0) return fail_errno("stdout", "cannot write");
  // An earlier flush failed; its errno is lost.
  if (std::ferror(stdout) != 0) return fail("stdout", "cannot write", "the output is incomplete");
  return {};
}

SigpipeHeld::SigpipeHeld() : pending_(sigpipe_is_pending()) {
  const sigset_t held = only_sigpipe();
  ::pthread_sigmask(SIG_BLOCK, &held, &before_);
}

SigpipeHeld::~SigpipeHeld() {
  const sigset_t held = only_sigpipe();
  const timespec at_once{};
  // SIGPIPE is sent to the writing thread (signal(7)).
  if (!pending_ && sigpipe_is_pending()) (void)::sigtimedwait(&held, nullptr, &at_once);
  ::pthread_sigmask(SIG_SETMASK, &before_, nullptr);
}

}  // namespace heddle
