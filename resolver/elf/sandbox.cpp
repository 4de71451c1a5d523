// SPDX-License-Identifier: MIT
#include "resolver/elf/sandbox.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <ctime>
#include <tuple>

#include "base/child.hpp"
#include "base/fd.hpp"
#include "base/sandbox/landlock.hpp"
#include "base/sandbox/privileges.hpp"
#include "base/sandbox/sanitized.hpp"
#include "base/sandbox/seccomp_filter.hpp"

namespace heddle {
namespace {

constexpr const char* kName = "elf-worker";
Result<void> limit(int resource, rlim_t value, const char* what) {
  const rlimit both{value, value};
  if (::setrlimit(static_cast<__rlimit_resource>(resource), &both) != 0)
    return fail_errno(kName, what);
  return {};
}

/// Nothing of the parent's is left: not even stderr, where LIEF would write into a program's talk.
Result<void> drop_descriptors(int socket) {
  auto null = open_file("/dev/null", O_RDWR);
  if (!null) return fail(std::move(null.error()));
  for (int fd = 0; fd < 3; ++fd)
    if (::dup2(null->get(), fd) < 0) return fail_errno(kName, "cannot close its stdio");
  null->reset();
  const int kept[] = {socket};
  close_fds_but(kept);
  return {};
}

Result<void> install_filter(int socket) {
  SeccompFilter filter(SeccompFilter::Denied::kill);
  const auto self = static_cast<scmp_datum_t>(::getpid());
  const auto on_socket = SCMP_A0(SCMP_CMP_EQ, static_cast<scmp_datum_t>(socket));
  const auto not_executable = SCMP_A2(SCMP_CMP_MASKED_EQ, PROT_EXEC, 0);

  // What malloc does, never with code and never on a file.
  filter.allow({SCMP_SYS(brk), SCMP_SYS(munmap), SCMP_SYS(mremap), SCMP_SYS(madvise)});
  filter.allow_if(SCMP_SYS(mprotect), not_executable);
  for (const int call : {SCMP_SYS(mmap), SCMP_SYS(mmap2)})
    filter.allow_if(call, not_executable,
                    SCMP_A3(SCMP_CMP_MASKED_EQ, MAP_ANONYMOUS, MAP_ANONYMOUS));
  // The work itself.
  filter.allow({SCMP_SYS(pread64), SCMP_SYS(close), SCMP_SYS(futex), SCMP_SYS(clock_gettime),
                SCMP_SYS(getrandom), SCMP_SYS(exit), SCMP_SYS(exit_group),
                SCMP_SYS(restart_syscall)});
  for (const int call : {SCMP_SYS(recvmsg), SCMP_SYS(sendmsg)}) filter.allow_if(call, on_socket);
  filter.allow_if(SCMP_SYS(prlimit64), SCMP_A0(SCMP_CMP_EQ, 0), SCMP_A1(SCMP_CMP_EQ, RLIMIT_CPU));
  // abort(), so that a failed assertion is told as SIGABRT, and its last words, to /dev/null.
  for (const int call : {SCMP_SYS(write), SCMP_SYS(writev)})
    filter.allow_if(call, SCMP_A0(SCMP_CMP_EQ, STDERR_FILENO));
  filter.allow({SCMP_SYS(rt_sigprocmask), SCMP_SYS(rt_sigaction), SCMP_SYS(rt_sigreturn),
                SCMP_SYS(getpid), SCMP_SYS(gettid)});
  filter.allow_if(SCMP_SYS(tgkill), SCMP_A0(SCMP_CMP_EQ, self));
  return filter.load(kName);
}

}  // namespace

Result<void> enter_sandbox(int socket, std::uint64_t memory) {
  if constexpr (kSanitized) return {};
  if (auto done = drop_descriptors(socket); !done) return done;
  for (const auto& [resource, value, what] :
       {std::tuple{RLIMIT_AS, rlim_t{memory}, "cannot limit its memory"},
        std::tuple{RLIMIT_FSIZE, rlim_t{0}, "cannot limit its files"},
        std::tuple{RLIMIT_CORE, rlim_t{0}, "cannot limit its core files"}})
    if (auto done = limit(resource, value, what); !done) return done;
  allow_cpu_time(10);
  if (auto done = drop_capabilities(kName); !done) return done;
  if (auto done = give_up_new_privileges(kName); !done) return done;
  if (auto done = Landlock().restrict_thread(kName); !done) return done;
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
