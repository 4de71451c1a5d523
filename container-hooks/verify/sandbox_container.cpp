// SPDX-License-Identifier: MIT
#include "container-hooks/verify/sandbox_container.hpp"

#include <fcntl.h>
#include <grp.h>
#include <sched.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <climits>
#include <filesystem>

#include "base/channel.hpp"
#include "base/log.hpp"
#include "base/mounts.hpp"
#include "base/sandbox/privileges.hpp"
#include "base/sandbox/seccomp_filter.hpp"
#include "base/trusted_path.hpp"
#include "base/try.hpp"
#include "container-hooks/host/programs.hpp"
#include "container-hooks/swap/container_root.hpp"

namespace heddle::hook {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kOutputLimit = 4U << 20;
constexpr rlim_t kCpuSeconds = 10;
constexpr rlim_t kMostMapped = rlim_t{16}
                               << 30;  // libraries are mapped whole: CUDA's are gigabytes
constexpr rlim_t kMostData = rlim_t{1} << 30;

/// Sent with stdout and stderr as descriptors.
struct Command {
  std::vector<std::string> argv;
  std::vector<std::string> environment;
};
template <class Coder, class R>
requires std::same_as<std::remove_const_t<R>, Command>
void fields(Coder& coder, R& command) { coder(command.argv, command.environment); }

Result<void> write_text(const std::string& path, const std::string& text) {
  auto file = TRY(open_file(path, O_WRONLY));
  return write_all(file.get(), text, path);
}

Result<void> leave_for_own_namespaces() {
  if (::unshare(CLONE_NEWNS | CLONE_NEWPID | CLONE_NEWNET | CLONE_NEWIPC | CLONE_NEWUTS) != 0)
    return fail_errno("", "cannot make a sandbox for the image");
  if (::mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0)
    return fail_errno("", "cannot make a mount namespace");
  return {};
}

/// The same inside and outside: the image's ld.so gets the rights that files grant to all.
constexpr uid_t kNobody = 65534;

/// The identity of the image's program.
struct Nobody {
  bool wanted = false;  ///< only for root
  Fd users;             ///< a user namespace; may be none
};

/// A user namespace that maps only kNobody. None when the kernel forbids it: kNobody then is of
/// this namespace.
Fd nobodys_namespace() {
  auto sockets = make_socket_pair();
  if (!sockets) return {};
  const auto child = fork_child({}, [&] {
    sockets->one.reset();
    if (::unshare(CLONE_NEWUSER) == 0) (void)send_fd(sockets->other.get(), STDERR_FILENO);
    (void)receive_packet(sockets->other.get(), kNoLimit);
    return 0;
  });
  sockets->other.reset();
  if (!child || !receive_fd(sockets->one.get())) return {};
  const auto process = "/proc/" + std::to_string(child->pid());
  const auto ids = std::to_string(kNobody) + " " + std::to_string(kNobody) + " 1";
  if (!write_text(process + "/uid_map", ids) || !write_text(process + "/gid_map", ids)) return {};
  auto users = open_file(process + "/ns/user", O_RDONLY);
  return users ? std::move(*users) : Fd();
}

bool become_nobody(const Fd& users) {
  return ::setgroups(0, nullptr) == 0 && (!users || ::setns(users.get(), CLONE_NEWUSER) == 0) &&
         ::setresgid(kNobody, kNobody, kNobody) == 0 &&
         ::setresuid(kNobody, kNobody, kNobody) == 0 && ::prctl(PR_SET_PDEATHSIG, SIGKILL) == 0;
}

bool set_limits() {
  const auto limit = [](auto resource, rlim_t value) {
    const rlimit both{value, value};
    return ::setrlimit(resource, &both) == 0;
  };
  return limit(RLIMIT_CPU, kCpuSeconds) && limit(RLIMIT_CORE, 0) && limit(RLIMIT_FSIZE, 0) &&
         limit(RLIMIT_NPROC, 1) && limit(RLIMIT_AS, kMostMapped) && limit(RLIMIT_DATA, kMostData);
}

/// Allows execve(2) and the calls of any glibc's ld.so that lists libraries. Others fail without
/// killing it.
Result<void> close_filter() {
  SeccompFilter calls(SeccompFilter::Denied::fail);
  calls.allow(
      {SCMP_SYS(execve),
       // Memory.
       SCMP_SYS(brk), SCMP_SYS(mmap), SCMP_SYS(munmap), SCMP_SYS(mremap), SCMP_SYS(mprotect),
       SCMP_SYS(madvise),
       // Files, all read-only.
       SCMP_SYS(open), SCMP_SYS(openat), SCMP_SYS(close), SCMP_SYS(read), SCMP_SYS(readv),
       SCMP_SYS(pread64), SCMP_SYS(lseek), SCMP_SYS(write), SCMP_SYS(writev), SCMP_SYS(fcntl),
       SCMP_SYS(stat), SCMP_SYS(lstat), SCMP_SYS(fstat), SCMP_SYS(newfstatat), SCMP_SYS(statx),
       SCMP_SYS(access), SCMP_SYS(faccessat), SCMP_SYS(faccessat2), SCMP_SYS(readlink),
       SCMP_SYS(readlinkat), SCMP_SYS(getcwd), SCMP_SYS(getdents64),
       // Its own process.
       SCMP_SYS(uname), SCMP_SYS(arch_prctl), SCMP_SYS(set_tid_address), SCMP_SYS(set_robust_list),
       SCMP_SYS(rseq), SCMP_SYS(prlimit64), SCMP_SYS(getrlimit), SCMP_SYS(getrandom),
       SCMP_SYS(getpid), SCMP_SYS(getppid), SCMP_SYS(gettid), SCMP_SYS(getuid), SCMP_SYS(geteuid),
       SCMP_SYS(getgid), SCMP_SYS(getegid), SCMP_SYS(clock_gettime), SCMP_SYS(gettimeofday),
       SCMP_SYS(time), SCMP_SYS(sysinfo), SCMP_SYS(sched_getaffinity), SCMP_SYS(futex),
       SCMP_SYS(rt_sigaction), SCMP_SYS(rt_sigprocmask), SCMP_SYS(rt_sigreturn),
       SCMP_SYS(restart_syscall), SCMP_SYS(exit), SCMP_SYS(exit_group)});
  return calls.load("fs-hook");
}

Result<void> give_up_rights(const Nobody& nobody) {
  if (nobody.wanted && !become_nobody(nobody.users))
    return fail_errno("fs-hook", "cannot become nobody");
  TRY(drop_capabilities("fs-hook"));
  TRY(give_up_new_privileges("fs-hook"));
  if (!set_limits()) return fail_errno("fs-hook", "cannot limit the image's ld.so");
  return {};
}

/// Returns only on failure, with stderr on `err`.
Result<void> execute(Command command, int out, int err, const Nobody& nobody) {
  if (command.argv.empty() || ::dup2(out, STDOUT_FILENO) < 0 || ::dup2(err, STDERR_FILENO) < 0)
    return fail_errno("fs-hook", "cannot start the image's ld.so");
  // The kernel gives a program its canonical path ($ORIGIN); ld.so with a path as argument does
  // not.
  char real[PATH_MAX];
  if (::realpath(command.argv.back().c_str(), real) != nullptr) command.argv.back() = real;
  TRY(give_up_rights(nobody));
  (void)::close(STDIN_FILENO);
  close_fds_but({});
  TRY(close_filter());
  ::execve(command.argv[0].c_str(), to_c_array(command.argv).data(),
           to_c_array(command.environment).data());
  return fail_errno(command.argv[0], "cannot start it");
}

/// The first process of the PID namespace: runs one command after the other until `socket` closes.
int serve_commands(const std::string& rootfs, int socket, const Nobody& nobody) {
  for (bool inside = false;; inside = true) {
    auto command = receive_record<Command>(socket, kNoLimit);
    if (!command || command->fds.size() != 2) return 0;
    const int out = command->fds[0].get();
    const int err = command->fds[1].get();
    if (!inside && !change_root(rootfs)) {
      (void)write_all(err, rootfs + ": cannot become the root\n", "stderr");
      return 1;
    }
    ForkOptions options;
    options.default_signals = false;
    const auto started = fork_child(options, [&] {
      if (auto done = execute(std::move(command->message), out, err, nobody); !done)
        report(done.error());
      return 127;
    });
    command->fds.clear();
    while (::waitpid(-1, nullptr, 0) > 0 || errno == EINTR) {
    }
  }
}

Result<void> live(const std::string& rootfs, const std::vector<Volume>& volumes, int socket) {
  Nobody nobody{is_systems_root(), {}};
  if (nobody.wanted) nobody.users = nobodys_namespace();
  TRY(leave_for_own_namespaces());
  TRY(make_container_root(rootfs, volumes, Volumes::inert));
  ForkOptions options;
  options.dies_with_parent = false;  // set below: fork_child() sees no parent in a PID namespace
  Child first = TRY(fork_child(options, [&] {
    (void)::prctl(PR_SET_PDEATHSIG, SIGKILL);
    return serve_commands(rootfs, socket, nobody);
  }));
  TRY(send_fd(socket, socket));
  (void)first.wait();
  return {};
}

}  // namespace

Result<void> become_root_of_own_namespace() {
  const auto ids = [](auto id) { return "0 " + std::to_string(id) + " 1"; };
  const auto uid = ids(::geteuid());
  const auto gid = ids(::getegid());
  if (::unshare(CLONE_NEWUSER) != 0)
    return fail_errno("", "cannot make a sandbox for the image", errno,
                      "unprivileged users need user namespaces");
  TRY(write_text("/proc/self/setgroups", "deny"));
  TRY(write_text("/proc/self/uid_map", uid));
  return write_text("/proc/self/gid_map", gid);
}

Result<SandboxContainer> SandboxContainer::start(const std::string& rootfs,
                                                 const std::vector<Volume>& volumes,
                                                 std::chrono::seconds limit) {
  SocketPair sockets = TRY(make_socket_pair());
  Child child = TRY(fork_child({}, [&] {
    sockets.one.reset();
    const auto lived = live(rootfs, volumes, sockets.other.get());
    if (!lived) send_failure(sockets.other.get(), lived.error());
    return lived ? 0 : 1;
  }));
  SandboxContainer container(std::move(child), std::move(sockets.one), limit);
  sockets.other.reset();
  TRY(receive_fd(container.socket_.get()));
  return container;
}

Result<Output> SandboxContainer::run(const std::vector<std::string>& argv,
                                     const std::vector<std::string>& environment) {
  Pipe out = TRY(make_pipe());
  Pipe err = TRY(make_pipe());
  const int fds[] = {out.write_end.get(), err.write_end.get()};
  if (auto sent = send_record(socket_.get(), Command{argv, environment}, fds); !sent)
    return fail_errno(argv[0], "cannot start it in the image", sent.error().code());
  out.write_end.reset();
  err.write_end.reset();
  auto output = read_output("the image's ld.so", out.read_end, err.read_end, limit_, kOutputLimit);
  if (!output && output.error().code() == ETIMEDOUT)
    return fail("the image's ld.so", "stopped",
                "it takes longer than " + std::to_string(limit_.count()) + " s",
                "a slow file system may need more: --timeout");
  return output;
}

}  // namespace heddle::hook
