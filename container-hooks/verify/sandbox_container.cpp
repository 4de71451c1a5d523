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
#include "container-hooks/host/mount_calls.hpp"
#include "container-hooks/host/programs.hpp"

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

constexpr std::size_t kEmptyDirectory = 65536;  ///< for a few names in it
constexpr int kMostLinks = 40;                  ///< <linux/namei.h>, MAXSYMLINKS

/// `from` with all that is mounted below it, read-only, over what `target` is open on.
Result<void> place_tree(const std::string& from, const Fd& target, const std::string& name) {
  auto tree = TRY(clone_tree(from));
  TRY(make_inert(tree.get(), from));
  return attach_mount(tree.get(), target.get(), name);
}

/// An overlay of `rootfs` with a tmpfs over `rootfs` itself, without the mounts below it.
Result<void> place_overlay(const std::string& rootfs, const Fd& lower) {
  const auto memory = TRY(new_tmpfs(kEmptyDirectory));
  for (const char* name : {"upper", "work"})
    if (::mkdirat(memory.get(), name, 0755) != 0) return fail_errno(name, "cannot make it");
  // Overlays take no directory of a detached mount (fs/namespace.c, clone_private_mount).
  TRY(attach_mount(memory.get(), lower.get(), rootfs));
  const auto overlay = TRY(new_overlay(lower.get(), memory.get()));
  return attach_mount(overlay.get(), memory.get(), rootfs);
}

/// Makes a volume's target with its parents as runtimes do, also the target of a dangling link
/// (/etc/resolv.conf of an image with systemd). `rootfs` is this process's root meanwhile, so that
/// no link leads out of it.
Result<void> make_place(const std::string& rootfs, fs::path path, bool is_directory) {
  constexpr const char* kWhat = "cannot make a place there";
  const auto name = path.string();
  const Fd host = TRY(open_file("/", O_PATH | O_DIRECTORY));
  if (::chroot(rootfs.c_str()) != 0 || ::chdir("/") != 0) return fail_errno(name, kWhat);
  std::error_code error;
  for (int links = 0; links < kMostLinks && fs::is_symlink(path, error); ++links)
    path = path.parent_path() / fs::read_symlink(path, error);
  fs::create_directories(is_directory ? path : path.parent_path(), error);
  const auto made = error          ? fail_errno(name, kWhat, error.value())
                    : is_directory ? Result<Fd>(Fd())
                                   : open_file(path.string(), O_WRONLY | O_CREAT, 0644);
  if (::fchdir(host.get()) != 0 || ::chroot(".") != 0) return fail_errno(name, kWhat);
  if (!made) return fail_errno(name, kWhat, made.error().code());
  return {};
}

Result<void> place_volume(const Fd& root, const std::string& rootfs, const Volume& volume) {
  auto target = find_in_root(root.get(), volume.target, 0);
  if (!target && target.error().code() == ENOENT) {
    struct stat source {};
    if (::stat(volume.source.c_str(), &source) != 0)
      return fail_errno(volume.source, "cannot be a volume");
    const auto made = make_place(rootfs, volume.target, S_ISDIR(source.st_mode));
    // In another volume, which is the host's.
    if (!made && made.error().code() == EROFS) return {};
    TRY(made);
    target = find_in_root(root.get(), volume.target, 0);
  }
  if (!target) return fail(std::move(target.error()));
  return place_tree(volume.source, *target, volume.target);
}

/// Makes `rootfs`, in this process's mount namespace, a container's root as before its program
/// starts: with volumes and an empty /dev. All except /dev is read-only. Targets of volumes that
/// the image lacks are made in an overlay.
Result<void> make_sandbox_root(const std::string& rootfs, const std::vector<Volume>& volumes) {
  const auto image = TRY(open_file(rootfs, O_PATH | O_DIRECTORY));
  const auto lacks = [&](const std::string& path) {
    const auto place = find_in_root(image.get(), path, 0);
    return !place && place.error().code() == ENOENT;
  };
  const bool lacks_places =
      lacks("/dev") || std::any_of(volumes.begin(), volumes.end(),
                                   [&](const auto& one) { return lacks(one.target); });
  TRY(lacks_places ? place_overlay(rootfs, image) : place_tree(rootfs, image, rootfs));
  const auto root = TRY(open_file(rootfs, O_PATH | O_DIRECTORY));
  for (const auto& volume : volumes) TRY(place_volume(root, rootfs, volume));
  // /dev gets the mount point, as with runtimes.
  if (lacks_places) TRY(make_place(rootfs, "/dev", true));
  const auto dev = TRY(find_in_root(root.get(), "/dev", O_DIRECTORY));
  const auto tmpfs = TRY(new_tmpfs(kEmptyDirectory));
  TRY(attach_mount(tmpfs.get(), dev.get(), "/dev"));
  return lacks_places ? make_inert(root.get(), rootfs, Reach::mount) : Result<void>();
}

Result<void> leave_for_own_namespaces() {
  if (::unshare(CLONE_NEWNS | CLONE_NEWPID | CLONE_NEWNET | CLONE_NEWIPC | CLONE_NEWUTS) != 0)
    return fail_errno("", "cannot make a sandbox for the image");
  if (::mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0)
    return fail_errno("", "cannot make a mount namespace");
  return {};
}

/// pivot_root(2), "pivot_root(".", ".")": this namespace no longer has the host's file tree.
bool change_root(const std::string& rootfs) {
  return ::chdir(rootfs.c_str()) == 0 && ::syscall(SYS_pivot_root, ".", ".") == 0 &&
         ::umount2(".", MNT_DETACH) == 0 && ::chdir("/") == 0;
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
  TRY(make_sandbox_root(rootfs, volumes));
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
  auto output = read_output("the image's ld.so", out, err, kOutputLimit, limit_);
  if (!output && output.error().code() == ETIMEDOUT)
    return fail("the image's ld.so", "stopped",
                "it takes longer than " + std::to_string(limit_.count()) + " s",
                "a slow file system may need more: --timeout");
  return output;
}

}  // namespace heddle::hook
