// SPDX-License-Identifier: MIT
#include "container-hooks/sandbox_container.hpp"

#include <fcntl.h>
#include <grp.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <climits>
#include <cstdlib>

#include "base/child.hpp"
#include "base/log.hpp"
#include "base/sandbox/privileges.hpp"
#include "base/sandbox/seccomp_filter.hpp"
#include "base/socket_pair.hpp"
#include "container-hooks/sandbox_root.hpp"
#include "container-hooks/trusted_files.hpp"

namespace heddle {
namespace {

constexpr std::size_t kOutputLimit = 4U << 20;
constexpr std::size_t kCommandLimit = 96U << 10;  // one packet: net.core.wmem_default is 208 KiB
constexpr rlim_t kCpuSeconds = 10;
constexpr rlim_t kMostMapped = rlim_t{16}
                               << 30;  // libraries are mapped whole: CUDA's are gigabytes
constexpr rlim_t kMostData = rlim_t{1} << 30;

/// fork() that ends with who forked it.
pid_t fork_with_us() {
  const pid_t pid = ::fork();
  if (pid == 0) (void)::prctl(PR_SET_PDEATHSIG, SIGKILL);
  return pid;
}

Result<void> write_text(const std::string& path, const std::string& text) {
  auto file = open_file(path, O_WRONLY);
  if (!file) return fail(std::move(file.error()));
  return write_all(file->get(), text, path);
}

Result<void> leave_for_own_namespaces() {
  if (::unshare(CLONE_NEWNS | CLONE_NEWPID | CLONE_NEWNET | CLONE_NEWIPC | CLONE_NEWUTS) != 0)
    return fail_errno("", "cannot make a container to look into the image");
  if (::mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0)
    return fail_errno("", "cannot make a mount namespace");
  return {};
}

/// pivot_root(2), "pivot_root(".", ".")": the host's tree is gone from this namespace.
bool change_root(const std::string& rootfs) {
  return ::chdir(rootfs.c_str()) == 0 && ::syscall(SYS_pivot_root, ".", ".") == 0 &&
         ::umount2(".", MNT_DETACH) == 0 && ::chdir("/") == 0;
}

/// Nobody, here and outside: what the image's files grant to all is what its ld.so gets.
constexpr uid_t kNobody = 65534;

/// Who the image's program is to be; a user is nobody but himself in there anyway.
struct Nobody {
  bool wanted = false;
  Fd users;  ///< may be none
};

/// A user namespace that knows nobody else. None where the kernel has none to give (or a user's
/// namespace is this one already): then who runs the image's program is nobody without it.
Fd nobodys_namespace() {
  auto sockets = make_socket_pair();
  if (!sockets) return {};
  const pid_t pid = fork_with_us();
  if (pid == 0) {
    sockets->one.reset();
    if (::unshare(CLONE_NEWUSER) == 0) (void)send_fd(sockets->other.get(), STDERR_FILENO);
    char end = 0;
    (void)!::read(sockets->other.get(), &end, 1);
    ::_exit(0);
  }
  sockets->other.reset();
  Child child(pid);
  if (!receive_fd(sockets->one.get())) return {};
  const auto process = "/proc/" + std::to_string(pid);
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

/// The last that we do ourselves but for execve(2): what ld.so of any glibc does to list libraries.
/// All else fails, and is no reason to end it.
Result<void> close_filter() {
  SeccompFilter calls(SeccompFilter::Denied::fail);
  calls.allow(
      {SCMP_SYS(execve),
       // Memory.
       SCMP_SYS(brk), SCMP_SYS(mmap), SCMP_SYS(munmap), SCMP_SYS(mremap), SCMP_SYS(mprotect),
       SCMP_SYS(madvise),
       // Files, which are read-only all.
       SCMP_SYS(open), SCMP_SYS(openat), SCMP_SYS(close), SCMP_SYS(read), SCMP_SYS(readv),
       SCMP_SYS(pread64), SCMP_SYS(lseek), SCMP_SYS(write), SCMP_SYS(writev), SCMP_SYS(fcntl),
       SCMP_SYS(stat), SCMP_SYS(lstat), SCMP_SYS(fstat), SCMP_SYS(newfstatat), SCMP_SYS(statx),
       SCMP_SYS(access), SCMP_SYS(faccessat), SCMP_SYS(faccessat2), SCMP_SYS(readlink),
       SCMP_SYS(readlinkat), SCMP_SYS(getcwd), SCMP_SYS(getdents64),
       // What it asks of itself.
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
  if (auto done = drop_capabilities("fs-hook"); !done) return done;
  if (auto done = give_up_new_privileges("fs-hook"); !done) return done;
  if (!set_limits()) return fail_errno("fs-hook", "cannot limit the image's ld.so");
  return {};
}

struct Words {
  std::vector<std::string> list;
  std::vector<char*> pointers() {
    std::vector<char*> out;
    for (auto& word : list) out.push_back(word.data());
    out.push_back(nullptr);
    return out;
  }
};

/// "count of argv NUL argv... NUL environment... NUL"
std::string pack(const std::vector<std::string>& argv, const std::vector<std::string>& more) {
  std::string out = std::to_string(argv.size()) + '\0';
  for (const auto* list : {&argv, &more})
    for (const auto& word : *list) out += word + '\0';
  return out;
}

std::pair<Words, Words> unpack(const std::string& text) {
  std::vector<std::string> words;
  for (std::size_t at = 0; at < text.size();) {
    const auto end = std::min(text.find('\0', at), text.size());
    words.push_back(text.substr(at, end - at));
    at = end + 1;
  }
  std::pair<Words, Words> out;
  const auto count = words.empty() ? 0 : std::strtoul(words[0].c_str(), nullptr, 10);
  for (std::size_t i = 1; i < words.size(); ++i)
    (i <= count ? out.first : out.second).list.push_back(words[i]);
  return out;
}

[[noreturn]] void execute(const std::string& command, int out, int err, const Nobody& nobody) {
  auto [argv, environment] = unpack(command);
  if (argv.list.empty() || ::dup2(out, STDOUT_FILENO) < 0 || ::dup2(err, STDERR_FILENO) < 0)
    ::_exit(127);
  // The kernel gives a program's own path free of links ($ORIGIN); ld.so, told a path, does not.
  char real[PATH_MAX];
  if (::realpath(argv.list.back().c_str(), real) != nullptr) argv.list.back() = real;
  if (auto done = give_up_rights(nobody); !done) {
    report(done.error());
    ::_exit(127);
  }
  (void)::close(STDIN_FILENO);
  close_fds_but({});
  if (auto closed = close_filter(); !closed) {
    report(closed.error());
    ::_exit(127);
  }
  ::execve(argv.list[0].c_str(), argv.pointers().data(), environment.pointers().data());
  const std::string words = argv.list[0] + ": cannot start it\n";
  (void)!::write(STDERR_FILENO, words.data(), words.size());
  ::_exit(127);
}

/// The first process of the pid namespace: one command after the other until nobody asks.
[[noreturn]] void serve_commands(const std::string& rootfs, int socket, const Nobody& nobody) {
  bool inside = false;
  for (;;) {
    auto out = receive_fd(socket);
    auto err = out ? receive_fd(socket) : Result<Fd>(fail(std::move(out.error())));
    if (!out || !err) ::_exit(0);
    std::string command(kCommandLimit, '\0');
    const ssize_t n = ::recv(socket, command.data(), command.size(), 0);
    if (n <= 0) ::_exit(0);
    command.resize(static_cast<std::size_t>(n));
    if (!inside && !change_root(rootfs)) {
      const std::string words = rootfs + ": cannot become the root\n";
      (void)!::write(err->get(), words.data(), words.size());
      ::_exit(1);
    }
    inside = true;
    if (fork_with_us() == 0) execute(command, out->get(), err->get(), nobody);
    out->reset();
    err->reset();
    while (::waitpid(-1, nullptr, 0) > 0 || errno == EINTR) {
    }
  }
}

[[noreturn]] void live(const std::string& rootfs, const std::vector<Volume>& volumes, int socket) {
  Nobody nobody{is_systems_root(), {}};
  if (nobody.wanted) nobody.users = nobodys_namespace();
  auto ready = leave_for_own_namespaces();
  if (ready) ready = make_sandbox_root(rootfs, volumes);
  if (!ready) {
    send_failure(socket, ready.error());
    ::_exit(1);
  }
  const pid_t first = fork_with_us();
  if (first == 0) serve_commands(rootfs, socket, nobody);
  if (first < 0 || !send_fd(socket, socket)) ::_exit(1);
  (void)::waitpid(first, nullptr, 0);
  ::_exit(0);
}

Result<void> collect(const Fd& out, const Fd& err, std::chrono::seconds limit,
                     SandboxContainer::Output& output) {
  std::array<pollfd, 2> entries{pollfd{out.get(), POLLIN, 0}, pollfd{err.get(), POLLIN, 0}};
  const auto end = std::chrono::steady_clock::now() + limit;
  char buffer[1U << 16];
  while (entries[0].fd >= 0 || entries[1].fd >= 0) {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(
        end - std::chrono::steady_clock::now());
    if (left.count() <= 0)
      return fail("the image's ld.so", "stopped",
                  "it takes longer than " + std::to_string(limit.count()) + " s",
                  "a slow file system may need more: --timeout");
    if (::poll(entries.data(), entries.size(), static_cast<int>(left.count())) < 0 &&
        errno != EINTR)
      return fail_errno("the image's ld.so", "cannot wait for it");
    for (auto& entry : entries) {
      if (entry.fd < 0 || entry.revents == 0) continue;
      const ssize_t n = ::read(entry.fd, buffer, sizeof(buffer));
      if (n < 0 && errno == EINTR) continue;
      auto& text = entry.fd == out.get() ? output.out : output.err;
      if (n <= 0)
        entry.fd = -1;
      else if (text.size() + static_cast<std::size_t>(n) > kOutputLimit)
        return fail("the image's ld.so", "stopped", "it says too much");
      else
        text.append(buffer, static_cast<std::size_t>(n));
    }
  }
  return {};
}

}  // namespace

Result<void> become_root_of_own_namespace() {
  const auto ids = [](auto id) { return "0 " + std::to_string(id) + " 1"; };
  const auto uid = ids(::geteuid());
  const auto gid = ids(::getegid());
  if (::unshare(CLONE_NEWUSER) != 0)
    return fail_errno("", "cannot make a container to look into the image", errno,
                      "users need user namespaces for it");
  if (auto done = write_text("/proc/self/setgroups", "deny"); !done) return done;
  if (auto done = write_text("/proc/self/uid_map", uid); !done) return done;
  return write_text("/proc/self/gid_map", gid);
}

Result<SandboxContainer> SandboxContainer::start(const std::string& rootfs,
                                                 const std::vector<Volume>& volumes,
                                                 std::chrono::seconds limit) {
  auto sockets = make_socket_pair();
  if (!sockets) return fail(std::move(sockets.error()));
  const pid_t pid = fork_with_us();
  if (pid < 0) return fail_errno("fs-hook", "cannot start a process");
  if (pid == 0) {
    sockets->one.reset();
    live(rootfs, volumes, sockets->other.get());
  }
  SandboxContainer container(Child(pid), std::move(sockets->one), limit);
  sockets->other.reset();
  if (auto ready = receive_fd(container.socket_.get()); !ready)
    return fail(std::move(ready.error()));
  return container;
}

Result<SandboxContainer::Output> SandboxContainer::run(
    const std::vector<std::string>& argv, const std::vector<std::string>& environment) {
  const auto command = pack(argv, environment);
  if (command.size() > kCommandLimit)
    return fail_errno(argv[0], "cannot start it in the image", E2BIG);
  auto out = make_pipe();
  auto err = make_pipe();
  if (!out || !err) return fail(std::move((out ? err : out).error()));
  for (const auto* pipe : {&*out, &*err})
    if (auto sent = send_fd(socket_.get(), pipe->write_end.get()); !sent)
      return fail(std::move(sent.error()));
  if (::send(socket_.get(), command.data(), command.size(), MSG_NOSIGNAL) < 0)
    return fail_errno("fs-hook", "cannot look into the image");
  out->write_end.reset();
  err->write_end.reset();
  Output output;
  if (auto all = collect(out->read_end, err->read_end, limit_, output); !all)
    return fail(std::move(all.error()));
  return output;
}

}  // namespace heddle
