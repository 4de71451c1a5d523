// SPDX-License-Identifier: MIT
#include "resolver/elf/worker_protocol.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <ctime>
#include <new>
#include <tuple>

#include "base/child.hpp"
#include "base/elf_file.hpp"
#include "base/exit_code.hpp"
#include "base/fd.hpp"
#include "base/log.hpp"
#include "base/sandbox/landlock.hpp"
#include "base/sandbox/privileges.hpp"
#include "base/sandbox/sanitized.hpp"
#include "base/sandbox/seccomp_filter.hpp"
#include "base/try.hpp"
#include "resolver/elf/loader_facts.hpp"

namespace heddle {
namespace {

constexpr const char* kName = "elf-worker";
/// A file of 10 GB takes 2 s to hash; more than this is a loop.
constexpr unsigned kCpuSeconds = 10;
/// Up to this size one read of the whole is cheaper than preads of the parts.
constexpr std::uint64_t kSmallFile = std::uint64_t{1} << 20;

/// Closes all of the parent's descriptors, stderr too: LIEF would write into a program's output.
Result<void> drop_descriptors(int socket) {
  Fd null = TRY(open_file("/dev/null", O_RDWR));
  for (int fd = 0; fd < 3; ++fd)
    if (::dup2(null.get(), fd) < 0) return fail_errno(kName, "cannot close its stdio");
  null.reset();
  const int kept[] = {socket};
  close_fds_but(kept);
  return {};
}

Result<void> install_filter(int socket) {
  SeccompFilter filter(SeccompFilter::Denied::kill);
  const auto self = static_cast<scmp_datum_t>(::getpid());
  const auto on_socket = SCMP_A0(SCMP_CMP_EQ, static_cast<scmp_datum_t>(socket));
  const auto not_executable = SCMP_A2(SCMP_CMP_MASKED_EQ, PROT_EXEC, 0);

  // For malloc: no code, no files.
  filter.allow({SCMP_SYS(brk), SCMP_SYS(munmap), SCMP_SYS(mremap), SCMP_SYS(madvise)});
  filter.allow_if(SCMP_SYS(mprotect), not_executable);
  for (const int call : {SCMP_SYS(mmap), SCMP_SYS(mmap2)})
    filter.allow_if(call, not_executable,
                    SCMP_A3(SCMP_CMP_MASKED_EQ, MAP_ANONYMOUS, MAP_ANONYMOUS));
  // For the work.
  filter.allow({SCMP_SYS(pread64), SCMP_SYS(close), SCMP_SYS(futex), SCMP_SYS(poll),
                SCMP_SYS(ppoll), SCMP_SYS(clock_gettime), SCMP_SYS(getrandom), SCMP_SYS(exit),
                SCMP_SYS(exit_group), SCMP_SYS(restart_syscall)});
  for (const int call : {SCMP_SYS(recvmsg), SCMP_SYS(sendmsg)}) filter.allow_if(call, on_socket);
  filter.allow_if(SCMP_SYS(prlimit64), SCMP_A0(SCMP_CMP_EQ, 0), SCMP_A1(SCMP_CMP_EQ, RLIMIT_CPU));
  // For abort(), so that a failed assertion ends by SIGABRT; its message goes to /dev/null.
  for (const int call : {SCMP_SYS(write), SCMP_SYS(writev)})
    filter.allow_if(call, SCMP_A0(SCMP_CMP_EQ, STDERR_FILENO));
  filter.allow({SCMP_SYS(rt_sigprocmask), SCMP_SYS(rt_sigaction), SCMP_SYS(rt_sigreturn),
                SCMP_SYS(getpid), SCMP_SYS(gettid)});
  filter.allow_if(SCMP_SYS(tgkill), SCMP_A0(SCMP_CMP_EQ, self));
  return filter.load(kName);
}

Reply error_reply(const Error& error) {
  Reply reply;
  reply.code = error.code() == 0 ? EBADMSG : error.code();
  reply.message = error.message();
  return reply;
}

}  // namespace

Result<void> enter_sandbox(int socket, std::uint64_t memory) {
  if constexpr (kSanitized) return {};
  TRY(drop_descriptors(socket));
  for (const auto& [resource, value, what] :
       {std::tuple{RLIMIT_AS, rlim_t{memory}, "cannot limit its memory"},
        std::tuple{RLIMIT_FSIZE, rlim_t{0}, "cannot limit its files"},
        std::tuple{RLIMIT_CORE, rlim_t{0}, "cannot limit its core files"}}) {
    const rlimit both{value, value};
    if (::setrlimit(resource, &both) != 0) return fail_errno(kName, what);
  }
  allow_cpu_time(kCpuSeconds);
  TRY(drop_capabilities(kName));
  TRY(give_up_new_privileges(kName));
  TRY(Landlock().restrict_thread(kName));
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

Result<Reply> read_elf(int fd, const Request& request) try {
  Reply reply;
  const auto content =
      request.size <= kSmallFile ? FileBytes(fd, request.size).text(0, request.size) : std::nullopt;
  reply.hash = content ? hash_bytes(*content) : TRY(hash_file(fd, ""));
  const FileBytes bytes = content ? FileBytes(*content) : FileBytes(fd, request.size);
  const ElfFile elf = TRY(ElfFile::read(bytes));
  const bool with_symbols = request.detail == FactsDetail::symbols;
  SymbolTable symbols;
  reply.facts = TRY(read_loader_facts(elf, with_symbols ? &symbols : nullptr));
#ifdef HEDDLE_WITH_LIEF
  if (with_symbols) TRY(read_symbols_with_lief(elf, symbols, reply.facts));
#else
  if (with_symbols) TRY(read_symbols(elf, symbols, reply.facts));
#endif
  return reply;
} catch (const std::bad_alloc&) {
  return damaged_elf("it takes more memory than is allowed");
}

int serve_requests(std::uint64_t memory) {
  struct stat st {};
  if (::fstat(kWorkerSocket, &st) != 0 || !S_ISSOCK(st.st_mode)) {
    say("heddle's other programs start this one; it is not for use by hand");
    return exit_usage;
  }
#ifdef HEDDLE_WITH_LIEF
  prepare_lief();
#endif
  if (const auto closed = enter_sandbox(kWorkerSocket, memory); !closed) {
    static_cast<void>(send_reply(kWorkerSocket, error_reply(closed.error())));
    return exit_failure;
  }
  if (!send_reply(kWorkerSocket, {})) return exit_failure;
  for (;;) {
    const auto received = receive_record<Request>(kWorkerSocket, std::chrono::hours(24));
    if (!received && received.error().code() == ETIMEDOUT) continue;
    if (!received) return received.error().code() == ECONNRESET ? exit_done : exit_failure;
    if (received->fds.size() != 1) return exit_failure;
    allow_cpu_time(kCpuSeconds);
    const auto read = read_elf(received->fds[0].get(), received->message);
    auto sent = send_reply(kWorkerSocket, read ? *read : error_reply(read.error()));
    if (!sent && sent.error().code() == EMSGSIZE)
      sent =
          send_reply(kWorkerSocket, error_reply(damaged_elf("its tables are too large").value()));
    if (!sent) return exit_failure;
  }
}

}  // namespace heddle
