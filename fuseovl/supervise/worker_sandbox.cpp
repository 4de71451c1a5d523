// SPDX-License-Identifier: MIT
#include "fuseovl/supervise/worker_sandbox.hpp"

#include <fcntl.h>
#include <linux/capability.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>

#include <algorithm>

#include "base/log.hpp"
#include "base/sandbox/privileges.hpp"
#include "base/sandbox/sanitized.hpp"
#include "base/try.hpp"
#include "fuseovl/files/file_work.hpp"

namespace heddle {
namespace {

constexpr const char* kName = "fs-mount";

/// Reading requests from the device, answering from open files. Files are opened by openat(2): a
/// filter cannot see the flags of openat2(2).
void allow_serving(SeccompFilter& calls) {
  calls.allow({SCMP_SYS(read), SCMP_SYS(readv), SCMP_SYS(pread64), SCMP_SYS(preadv),
               SCMP_SYS(preadv2), SCMP_SYS(readahead), SCMP_SYS(fadvise64), SCMP_SYS(lseek)});
  calls.allow({SCMP_SYS(write), SCMP_SYS(writev), SCMP_SYS(splice), SCMP_SYS(vmsplice),
               SCMP_SYS(tee), SCMP_SYS(pipe2)});
  calls.allow({SCMP_SYS(fstat), SCMP_SYS(newfstatat), SCMP_SYS(statx), SCMP_SYS(fstatfs),
               SCMP_SYS(fcntl), SCMP_SYS(dup), SCMP_SYS(close), SCMP_SYS(close_range)});
  calls.allow({SCMP_SYS(poll), SCMP_SYS(ppoll), SCMP_SYS(eventfd2), SCMP_SYS(sendfile),
               SCMP_SYS(memfd_create)});
  calls.allow_if(SCMP_SYS(openat),
                 SCMP_A2(SCMP_CMP_MASKED_EQ, O_ACCMODE | O_CREAT | O_TRUNC, O_RDONLY));
}

/// For malloc and threads: memory that is not executable, no processes, signals to itself.
void allow_living(SeccompFilter& calls, pid_t supervisor) {
  const auto not_executable = SCMP_A2(SCMP_CMP_MASKED_EQ, PROT_EXEC, 0);
  calls.allow({SCMP_SYS(brk), SCMP_SYS(munmap), SCMP_SYS(mremap), SCMP_SYS(madvise),
               SCMP_SYS(futex), SCMP_SYS(set_robust_list), SCMP_SYS(rseq), SCMP_SYS(membarrier)});
  calls.allow({SCMP_SYS(sched_yield), SCMP_SYS(sched_getaffinity), SCMP_SYS(getpid),
               SCMP_SYS(gettid), SCMP_SYS(getppid), SCMP_SYS(getuid), SCMP_SYS(geteuid),
               SCMP_SYS(getgid)});
  calls.allow({SCMP_SYS(getegid), SCMP_SYS(clock_gettime), SCMP_SYS(clock_nanosleep),
               SCMP_SYS(nanosleep), SCMP_SYS(gettimeofday), SCMP_SYS(getrandom)});
  calls.allow({SCMP_SYS(sysinfo), SCMP_SYS(getrusage), SCMP_SYS(rt_sigaction),
               SCMP_SYS(rt_sigprocmask), SCMP_SYS(rt_sigreturn), SCMP_SYS(rt_sigtimedwait)});
  calls.allow({SCMP_SYS(rt_sigpending), SCMP_SYS(sigaltstack), SCMP_SYS(restart_syscall),
               SCMP_SYS(exit), SCMP_SYS(exit_group)});
  calls.allow_if(SCMP_SYS(mmap), not_executable);
  calls.allow_if(SCMP_SYS(mprotect), not_executable);
  // Reading its own limits.
  calls.allow_if(SCMP_SYS(prlimit64), SCMP_A0(SCMP_CMP_EQ, 0), SCMP_A2(SCMP_CMP_EQ, 0));
  calls.allow_if(SCMP_SYS(prctl), SCMP_A0(SCMP_CMP_EQ, PR_SET_NAME));
  // A filter cannot see clone3's flags; glibc falls back to clone.
  calls.refuse(SCMP_SYS(clone3), ENOSYS);
  calls.allow_if(SCMP_SYS(clone), SCMP_A0(SCMP_CMP_MASKED_EQ, CLONE_THREAD, CLONE_THREAD));
  calls.allow_if(SCMP_SYS(kill), SCMP_A0(SCMP_CMP_EQ, static_cast<scmp_datum_t>(supervisor)));
  const auto self = static_cast<scmp_datum_t>(::getpid());
  calls.allow_if(SCMP_SYS(kill), SCMP_A0(SCMP_CMP_EQ, self));
  calls.allow_if(SCMP_SYS(tgkill), SCMP_A0(SCMP_CMP_EQ, self));
}

}  // namespace

WorkerSandbox::WorkerSandbox(const std::vector<std::string>& reopened,
                             const std::vector<std::string>& own, std::chrono::milliseconds limit,
                             const std::vector<int>& trees)
    : reopens_(!reopened.empty() || !trees.empty()) {
  allow_serving(calls_);
  if (!files_->works()) return;
  // A missing file cannot be opened later either.
  for (const auto& path : own) (void)files_->allow_reading(path);
  for (const int directory : trees)
    if (const auto allowed = files_->allow_reading_below(directory); !allowed)
      warn(allowed.error());
  if (reopened.empty() || allow(reopened, limit)) return;
  warn(Error("", "workers are not restricted to the map's files",
             "a file system does not answer, or no process can be started"));
  files_.reset();
}

bool WorkerSandbox::allow(const std::vector<std::string>& reopened,
                          std::chrono::milliseconds limit) {
  if (!restricts_files()) return false;
  const FileWork naming{
      .limit = limit,
      .work = [&](std::size_t i, WorkPlace&) { (void)files_->allow_reading(reopened[i]); },
      .path_of = [&](std::size_t i) -> std::string_view { return reopened[i]; },
      .kept = {files_->descriptor()}};
  try {
    return std::ranges::all_of(work_on_files(reopened.size(), naming), [](const WorkResult& one) {
      return one.state == WorkResult::State::done;
    });
  } catch (const std::exception&) {  // no process, thread or memory
    return false;
  }
}

Result<void> WorkerSandbox::enter(pid_t supervisor) {
  if constexpr (kSanitized) return {};
  const std::uint64_t kept = reopens_ ? std::uint64_t{1} << CAP_DAC_READ_SEARCH : 0;
  // All of it, whatever fails.
  auto done = drop_capabilities(kName, kept);
  const auto add = [&](Result<void> next) {
    if (done && !next) done = std::move(next);
  };
  add(give_up_new_privileges(kName));
  if (files_) add(files_->restrict_thread(kName));
  allow_living(calls_, supervisor);
  add(calls_.load(kName));
  return done;
}

namespace {

/// Includes all that workers and the staging process need, which inherit it.
SeccompFilter supervising() {
  SeccompFilter calls(SeccompFilter::Denied::fail);
  allow_serving(calls);
  allow_living(calls, ::getpid());
  constexpr unsigned kNamespaces = CLONE_NEWNS | CLONE_NEWCGROUP | CLONE_NEWUTS | CLONE_NEWIPC |
                                   CLONE_NEWUSER | CLONE_NEWPID | CLONE_NEWNET;
  // Processes and their privileges.
  calls.allow({SCMP_SYS(wait4), SCMP_SYS(waitid), SCMP_SYS(kill), SCMP_SYS(tgkill),
               SCMP_SYS(pidfd_open), SCMP_SYS(pidfd_send_signal), SCMP_SYS(setsid),
               SCMP_SYS(setpgid)});
  calls.allow({SCMP_SYS(getpgid), SCMP_SYS(setpriority), SCMP_SYS(prctl), SCMP_SYS(prlimit64),
               SCMP_SYS(capget), SCMP_SYS(capset), SCMP_SYS(seccomp)});
  calls.allow({SCMP_SYS(landlock_create_ruleset), SCMP_SYS(landlock_add_rule),
               SCMP_SYS(landlock_restrict_self)});
  calls.allow({SCMP_SYS(signalfd4), SCMP_SYS(pause), SCMP_SYS(set_tid_address), SCMP_SYS(getgroups),
               SCMP_SYS(uname), SCMP_SYS(umask)});
  calls.allow_if(SCMP_SYS(clone), SCMP_A0(SCMP_CMP_MASKED_EQ, kNamespaces, 0));
  calls.allow({SCMP_SYS(socketpair), SCMP_SYS(sendto), SCMP_SYS(recvfrom), SCMP_SYS(sendmsg),
               SCMP_SYS(recvmsg), SCMP_SYS(ioctl)});
  // Files of its user, such as the staging directory's; unmounting.
  calls.allow({SCMP_SYS(openat),       SCMP_SYS(openat2),   SCMP_SYS(getdents64),
               SCMP_SYS(readlinkat),   SCMP_SYS(faccessat), SCMP_SYS(faccessat2),
               SCMP_SYS(statfs),       SCMP_SYS(unlinkat),  SCMP_SYS(mkdirat),
               SCMP_SYS(renameat),     SCMP_SYS(renameat2), SCMP_SYS(linkat),
               SCMP_SYS(fchmod),       SCMP_SYS(fchmodat),  SCMP_SYS(utimensat),
               SCMP_SYS(ftruncate),    SCMP_SYS(fallocate), SCMP_SYS(fsync),
               SCMP_SYS(fdatasync),    SCMP_SYS(syncfs),    SCMP_SYS(sync_file_range),
               SCMP_SYS(pwrite64),     SCMP_SYS(pwritev),   SCMP_SYS(copy_file_range),
               SCMP_SYS(sendfile),     SCMP_SYS(flock),     SCMP_SYS(chdir),
               SCMP_SYS(fchdir),       SCMP_SYS(getcwd),    SCMP_SYS(dup3),
               SCMP_SYS(memfd_create), SCMP_SYS(umount2)});
#ifdef __x86_64__  // older forms, which glibc prefers
  calls.allow({SCMP_SYS(open), SCMP_SYS(stat), SCMP_SYS(lstat), SCMP_SYS(access),
               SCMP_SYS(readlink), SCMP_SYS(unlink), SCMP_SYS(rmdir), SCMP_SYS(mkdir),
               SCMP_SYS(rename), SCMP_SYS(link), SCMP_SYS(chmod), SCMP_SYS(dup2), SCMP_SYS(pipe),
               SCMP_SYS(getpgrp), SCMP_SYS(alarm), SCMP_SYS(time)});
#endif
  return calls;
}

}  // namespace

bool is_open_to_powerless_root(const std::string& path) {
  for (auto end = path.rfind('/'); end != path.npos && end > 0; end = path.rfind('/', end - 1)) {
    struct stat status {};
    if (::stat(path.substr(0, end).c_str(), &status) != 0) return false;
    const mode_t search = status.st_uid == 0 ? S_IXUSR : S_IXOTH;
    if ((status.st_mode & search) == 0) return false;
  }
  return true;
}

/// A supervisor's filter, and accepting clients and mounting in the current namespace.
Result<void> filter_service() {
  if constexpr (kSanitized) return {};
  SeccompFilter calls = supervising();
  calls.allow({SCMP_SYS(accept), SCMP_SYS(accept4), SCMP_SYS(shutdown), SCMP_SYS(getsockname),
               SCMP_SYS(getsockopt), SCMP_SYS(setsockopt), SCMP_SYS(getresuid), SCMP_SYS(getxattr),
               SCMP_SYS(fgetxattr), SCMP_SYS(lgetxattr)});
  calls.allow({SCMP_SYS(mount), SCMP_SYS(open_tree), SCMP_SYS(fsopen), SCMP_SYS(fsconfig),
               SCMP_SYS(fsmount), SCMP_SYS(move_mount)});
  return calls.load(kName);
}

Result<void> confine_supervisor(const SupervisorNeeds& needs) {
  if constexpr (kSanitized) return {};
  std::uint64_t kept = 0;
  if (needs.unmounts) kept |= std::uint64_t{1} << CAP_SYS_ADMIN;
  if (needs.reopens) kept |= std::uint64_t{1} << CAP_DAC_READ_SEARCH;
  TRY(drop_capabilities(kName, kept));
  TRY(give_up_new_privileges(kName));
  return supervising().load(kName);
}

}  // namespace heddle
