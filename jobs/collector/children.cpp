// SPDX-License-Identifier: MIT

// Functions that wait for children, whose end their parent tells, and those by which a program
// takes system calls away from itself; syscall(2) is of both.

#include <linux/prctl.h>
#include <sys/wait.h>

#include "jobs/collector/interposed.hpp"
#include "jobs/collector/process.hpp"

namespace heddle::jobs {

// A child's end. libc's wait4 is a cancellation point and sets errno.

using Wait4 = pid_t(pid_t, int*, int, rusage*);
namespace {
/// `wait` reaps a child, and fills both; the caller of ours may have asked for neither.
template <class Wait>
long reap(int* status, rusage* usage, const Wait& wait) {
  int unused_status = 0;
  rusage unused_usage{};
  int* const at = status ? status : &unused_status;
  rusage* const used = usage ? usage : &unused_usage;
  const long got = wait(at, used);
  if (got > 0) write_reaped(static_cast<pid_t>(got), *at, *used);
  return got;
}
pid_t wait_for(pid_t pid, int* status, int options, rusage* usage) {
  static constinit Next<Wait4> next("wait4");
  auto* function = next.get();
  if (!function) return -1;
  return static_cast<pid_t>(
      reap(status, usage, [&](int* at, rusage* used) { return function(pid, at, options, used); }));
}
}  // namespace
HEDDLE_EXPORT pid_t wait4(pid_t pid, int* status, int options, rusage* usage) {
  return wait_for(pid, status, options, usage);
}
HEDDLE_EXPORT pid_t wait3(int* status, int options, rusage* usage) {
  return wait_for(-1, status, options, usage);
}
HEDDLE_EXPORT pid_t waitpid(pid_t pid, int* status, int options) {
  return wait_for(pid, status, options, nullptr);
}
HEDDLE_EXPORT pid_t wait(int* status) { return wait_for(-1, status, 0, nullptr); }

// libc's has no usage: it only waits, and the system call, which has, reaps.
HEDDLE_EXPORT int waitid(idtype_t which, id_t id, siginfo_t* info, int options) {
  static constinit Next<int(idtype_t, id_t, siginfo_t*, int)> next("waitid");
  auto* function = next.get();
  if (!function) return -1;
  if (!state.variable || state.sandboxed || (options & WEXITED) == 0 || (options & WNOWAIT) != 0)
    return function(which, id, info, options);
  for (;;) {
    siginfo_t child{};
    const int result = function(which, id, &child, options | WNOWAIT);
    rusage usage{};
    // Another thread may wait for the same child, and be the first.
    if (result == 0 && child.si_pid != 0 &&
        (syscall6(__NR_waitid, P_PID, child.si_pid, as_long(&child), options | WNOHANG,
                  as_long(&usage)) != 0 ||
         child.si_pid == 0))
      continue;
    if (result == 0 && child.si_pid != 0)
      write_reaped(child.si_pid,
                   child.si_code == CLD_EXITED   ? (child.si_status & 0xff) << 8
                   : child.si_code == CLD_KILLED ? child.si_status
                   : child.si_code == CLD_DUMPED ? child.si_status | 0x80
                                                 : 0x7f,  // stopped
                   usage);
    if (info) *info = child;  // on failure the kernel clears it
    return result;
  }
}

// A program that takes system calls away from itself may be killed by the first of ours.

using Prctl = int(int, unsigned long, unsigned long, unsigned long, unsigned long);
HEDDLE_EXPORT int prctl(int what, unsigned long a, unsigned long b, unsigned long c,
                        unsigned long d) {
  static constinit Next<Prctl> next("prctl");
  if (what == PR_SET_SECCOMP) state.sandboxed = true;
  auto* function = next.get();
  return function ? function(what, a, b, c, d)
                  : static_cast<int>(syscall6(__NR_prctl, what, static_cast<long>(a),
                                              static_cast<long>(b), static_cast<long>(c),
                                              static_cast<long>(d)));
}
// <unistd.h> declares it with an ellipsis.
HEDDLE_EXPORT long all_of_syscall(long number, long a, long b, long c, long d, long e,
                                  long f) __asm__("syscall");
long all_of_syscall(long number, long a, long b, long c, long d, long e, long f) {
  using Call = long(long, long, long, long, long, long, long);
  static constinit Next<Call> next("syscall");
  if (number == __NR_seccomp && a < 2) state.sandboxed = true;  // others ask only
  auto* function = next.get();
  if (!function) return -1;
  if (number != __NR_wait4) return function(number, a, b, c, d, e, f);
  // Not by libc's wait4(), where a thread can be cancelled.
  return reap(reinterpret_cast<int*>(b), reinterpret_cast<rusage*>(d), [&](int* at, rusage* used) {
    return function(number, a, as_long(at), c, as_long(used), e, f);
  });
}
HEDDLE_EXPORT int seccomp_load(void* filter) {
  static constinit Next<int(void*)> next("seccomp_load");
  state.sandboxed = true;
  auto* function = next.get();
  return function ? function(filter) : -38;  // ENOSYS
}

}  // namespace heddle::jobs
