// SPDX-License-Identifier: MIT
#include "resolver/elf/sandbox.hpp"

#include <fcntl.h>
#include <linux/close_range.h>
#include <seccomp.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <ctime>
#include <memory>
#include <tuple>

#include "base/fd.hpp"

namespace heddle {
namespace {

/// Room for LIEF 0.9's four copies of a file of 500 MB; reduced images take a thousandth.
constexpr rlim_t kMemory = rlim_t{3} << 30;

Result<void> limit(int resource, rlim_t value, const char* what) {
  const rlimit both{value, value};
  if (::setrlimit(static_cast<__rlimit_resource>(resource), &both) != 0)
    return fail_errno("elf-worker", what);
  return {};
}

/// Nothing of the parent's is left: not even stderr, where LIEF would write into a program's talk.
Result<void> drop_descriptors(int socket) {
  auto null = open_file("/dev/null", O_RDWR);
  if (!null) return fail(std::move(null.error()));
  for (int fd = 0; fd < 3; ++fd)
    if (::dup2(null->get(), fd) < 0) return fail_errno("elf-worker", "cannot close its stdio");
  null->reset();
  // By number: close_range(2) has no wrapper before glibc 2.34. Kernels before 5.9 lack it; what
  // is then left open cannot be used for anything but pread.
  const auto from = static_cast<unsigned>(socket);
  if (from > 3) ::syscall(SYS_close_range, 3U, from - 1, 0U);
  ::syscall(SYS_close_range, from + 1, ~0U, 0U);
  return {};
}

using Filter = std::unique_ptr<void, decltype(&seccomp_release)>;

/// seccomp_rule_add() of a call that every architecture has; the first failure stays in `status`.
template <class... Compare>
void allow(const Filter& filter, int& status, int call, Compare... compare) {
  if (status == 0)
    status = ::seccomp_rule_add(filter.get(), SCMP_ACT_ALLOW, call, sizeof...(compare), compare...);
}

Result<void> install_filter(int socket) {
  const Filter filter(::seccomp_init(SCMP_ACT_KILL_PROCESS), &seccomp_release);
  if (!filter) return fail("elf-worker", "cannot make a seccomp filter");
  int status = 0;
  const auto self = static_cast<scmp_datum_t>(::getpid());
  const auto on_socket = SCMP_A0(SCMP_CMP_EQ, static_cast<scmp_datum_t>(socket));
  const auto not_executable = SCMP_A2(SCMP_CMP_MASKED_EQ, PROT_EXEC, 0);

  // What malloc does, never with code and never on a file.
  for (const int call : {SCMP_SYS(brk), SCMP_SYS(munmap), SCMP_SYS(mremap), SCMP_SYS(madvise)})
    allow(filter, status, call);
  allow(filter, status, SCMP_SYS(mprotect), not_executable);
  for (const int call : {SCMP_SYS(mmap), SCMP_SYS(mmap2)})
    allow(filter, status, call, not_executable,
          SCMP_A3(SCMP_CMP_MASKED_EQ, MAP_ANONYMOUS, MAP_ANONYMOUS));
  // The work itself.
  for (const int call :
       {SCMP_SYS(pread64), SCMP_SYS(close), SCMP_SYS(futex), SCMP_SYS(clock_gettime),
        SCMP_SYS(getrandom), SCMP_SYS(exit), SCMP_SYS(exit_group), SCMP_SYS(restart_syscall)})
    allow(filter, status, call);
  for (const int call : {SCMP_SYS(recvmsg), SCMP_SYS(sendmsg)})
    allow(filter, status, call, on_socket);
  allow(filter, status, SCMP_SYS(prlimit64), SCMP_A0(SCMP_CMP_EQ, 0),
        SCMP_A1(SCMP_CMP_EQ, RLIMIT_CPU));
  // abort(), so that a failed assertion is told as SIGABRT, and its last words, to /dev/null.
  for (const int call : {SCMP_SYS(write), SCMP_SYS(writev)})
    allow(filter, status, call, SCMP_A0(SCMP_CMP_EQ, STDERR_FILENO));
  for (const int call : {SCMP_SYS(rt_sigprocmask), SCMP_SYS(rt_sigaction), SCMP_SYS(rt_sigreturn),
                         SCMP_SYS(getpid), SCMP_SYS(gettid)})
    allow(filter, status, call);
  allow(filter, status, SCMP_SYS(tgkill), SCMP_A0(SCMP_CMP_EQ, self));

  if (status == 0) status = ::seccomp_load(filter.get());
  if (status != 0)
    return fail_errno("elf-worker", "cannot close its sandbox (seccomp)", -status,
                      "the kernel or the container around must allow seccomp filters");
  return {};
}

}  // namespace

Result<void> enter_sandbox(int socket) {
  if (auto done = drop_descriptors(socket); !done) return done;
  for (const auto& [resource, value, what] :
       {std::tuple{RLIMIT_AS, kMemory, "cannot limit its memory"},
        std::tuple{RLIMIT_FSIZE, rlim_t{0}, "cannot limit its files"},
        std::tuple{RLIMIT_CORE, rlim_t{0}, "cannot limit its core files"}})
    if (auto done = limit(resource, value, what); !done) return done;
  allow_cpu_time(10);
  if (::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0)
    return fail_errno("elf-worker", "cannot give up privileges");
  return install_filter(socket);
}

void allow_cpu_time(unsigned seconds) {
  timespec used{};
  ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &used);
  rlimit cpu{};
  ::getrlimit(RLIMIT_CPU, &cpu);
  cpu.rlim_cur = std::min(cpu.rlim_max, static_cast<rlim_t>(used.tv_sec) + 1 + seconds);
  ::setrlimit(RLIMIT_CPU, &cpu);
}

}  // namespace heddle
