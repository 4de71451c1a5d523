// SPDX-License-Identifier: MIT
#include "base/run_directory.hpp"

#include <dirent.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <linux/capability.h>
#include <poll.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>

#include "base/backoff.hpp"
#include "base/content_hash.hpp"
#include "base/try.hpp"

namespace heddle {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kPeerPidfd = 77;  // SO_PEERPIDFD, Linux 6.5, newer than Debian 12's headers
constexpr int kBacklog = 4096;
constexpr const char* kLocks = "locks";
constexpr std::chrono::milliseconds kFirstPause{1};
constexpr std::chrono::milliseconds kLastPause{16};

/// A socket's path through the descriptor, which is short, and of which no component can have been
/// exchanged since the directory was checked.
Result<sockaddr_un> address_of(int directory, std::string_view name) {
  sockaddr_un out{};
  out.sun_family = AF_UNIX;
  const auto path = "/proc/self/fd/" + std::to_string(directory) + "/" + std::string(name);
  if (path.size() >= sizeof(out.sun_path))
    return fail_errno(name, "cannot be a socket", ENAMETOOLONG);
  path.copy(out.sun_path, path.size());
  return out;
}

Result<void> check(const Fd& directory, const std::string& path) {
  struct stat status {};
  if (::fstat(directory.get(), &status) != 0) return fail_errno(path, "cannot use");
  if (status.st_uid != ::geteuid()) return fail_errno(path, "belongs to another user", EPERM);
  if ((status.st_mode & 0022) != 0) return fail(path, "cannot use", "others may write to it");
  return {};
}

/// The name that the listener at `socket`'s other end was bound to; no rename changes it.
std::string bound_name(int socket) {
  sockaddr_un address{};
  socklen_t size = sizeof(address);
  if (::getpeername(socket, reinterpret_cast<sockaddr*>(&address), &size) != 0) return {};
  const std::string path(address.sun_path, ::strnlen(address.sun_path, sizeof(address.sun_path)));
  return path.substr(path.rfind('/') + 1);
}

bool is_same(int ours, int theirs, const char* name) {
  struct stat a {};
  struct stat b {};
  return ::fstatat(ours, name, &a, 0) == 0 && ::fstatat(theirs, name, &b, 0) == 0 &&
         a.st_dev == b.st_dev && a.st_ino == b.st_ino;
}

/// What confines a process of the same namespaces, by its /proc/PID/status.
struct Confinement {
  std::uint64_t permitted = 0, bounding = 0;
  std::uint64_t no_new_privileges = 1, seccomp = 2;
  std::uint64_t filters = 0;  ///< 0 before Linux 5.9
  bool has(int capability) const { return (permitted >> capability & 1U) != 0; }
};

Result<Confinement> confinement_of(const Fd& process) {
  const Fd file(::openat(process.get(), "status", O_RDONLY | O_CLOEXEC));
  const auto text = TRY(read_all(file.get(), "status"));
  const auto number = [&](std::string_view name, int base, std::uint64_t otherwise) {
    const auto at = text.find("\n" + std::string(name) + ":\t");
    return at == text.npos ? otherwise
                           : std::strtoull(text.c_str() + at + name.size() + 3, nullptr, base);
  };
  return Confinement{number("CapPrm", 16, 0), number("CapBnd", 16, 0), number("NoNewPrivs", 10, 1),
                     number("Seccomp", 10, 2), number("Seccomp_filters", 10, 0)};
}

using Comparison = bool (*)(const Fd& ours, const Fd& theirs);

/// Whether `theirs` can do all that `ours` can, as far as /proc tells.
bool is_as_free(const Fd& ours, const Fd& theirs) {
  if (!is_same(ours.get(), theirs.get(), "ns/mnt") || !is_same(ours.get(), theirs.get(), "root"))
    return false;
  const auto our = confinement_of(ours);
  const auto their = confinement_of(theirs);
  return our && their && (our->permitted & ~their->permitted) == 0 &&
         (our->bounding & ~their->bounding) == 0 &&
         their->no_new_privileges <= our->no_new_privileges && their->seccomp <= our->seccomp &&
         their->filters <= our->filters;
}

/// Whether `theirs` is as powerful as a process that may enter the mount namespace of `ours` by
/// setns(2), which also takes CAP_SYS_CHROOT, and so gains nothing by giving it a mount. Filters
/// are not compared: a service has its own.
bool can_enter(const Fd& ours, const Fd& theirs) {
  const auto our = confinement_of(ours);
  const auto their = confinement_of(theirs);
  return our && their && is_same(ours.get(), theirs.get(), "root") && their->has(CAP_SYS_ADMIN) &&
         (their->has(CAP_SYS_PTRACE) || (our->permitted & ~their->permitted) == 0);
}

Fd pidfd_of_peer(int socket, pid_t pid) {
  int fd = -1;
  socklen_t size = sizeof(fd);
  if (::getsockopt(socket, SOL_SOCKET, kPeerPidfd, &fd, &size) == 0) return Fd(fd);
  // EINVAL: it has ended, and its pid may be reused.
  if (errno != ENOPROTOOPT && errno != ENOSYS) return Fd();
  // On older kernels the pid may be reused already, but a process of another PID namespace cannot
  // control by which process.
  return Fd(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));
}

bool check_peer(int socket, Comparison compare) {
  ucred peer{};
  socklen_t size = sizeof(peer);
  // The pid is 0 for a PID namespace that is not below this one.
  if (::getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &size) != 0 || peer.uid != ::geteuid() ||
      peer.pid <= 0)
    return false;
  const Fd alive = pidfd_of_peer(socket, peer.pid);
  // Before Linux 5.3 there are no pidfds; EPERM: a seccomp filter of an older container runtime.
  if (!alive && errno != ENOSYS && errno != EPERM) return false;
  const Fd ours(::open("/proc/self", O_PATH | O_DIRECTORY | O_CLOEXEC));
  const Fd theirs(
      ::open(("/proc/" + std::to_string(peer.pid)).c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC));
  if (!ours || !theirs || !is_same(ours.get(), theirs.get(), "ns/user") ||
      !is_same(ours.get(), theirs.get(), "ns/pid") || !compare(ours, theirs))
    return false;
  // Checks that the pid is still the peer's: once its process has ended, the directory is empty.
  if (!alive) return ::faccessat(theirs.get(), "stat", R_OK, 0) == 0;
  pollfd entry{alive.get(), POLLIN, 0};
  return ::poll(&entry, 1, 0) == 0;
}

}  // namespace

Result<RunDirectory> RunDirectory::open() {
  const auto own = "/tmp/heddle-" + std::to_string(::geteuid());
  std::string first = "/run/heddle";
  if (::geteuid() != 0) {
    const char* runtime = std::getenv("XDG_RUNTIME_DIR");
    first = runtime && *runtime == '/' ? std::string(runtime) + "/heddle" : "";
  }
  if (!first.empty())
    if (auto made = open_at(first)) return made;
  return open_at(own);
}

Result<RunDirectory> RunDirectory::open_at(const std::string& path) {
  if (::mkdir(path.c_str(), 0700) != 0 && errno != EEXIST)
    return fail_errno(path, "cannot make the directory");
  auto out = find(path);
  if (out) (void)::fchmod(out->get(), 0700);
  return out;
}

Result<RunDirectory> RunDirectory::find(const std::string& path) {
  Fd directory = TRY(open_file(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW));
  TRY(check(directory, path));
  return RunDirectory(path, std::move(directory));
}

Result<Fd> RunDirectory::listen_at(std::string_view name) const {
  const sockaddr_un address = TRY(address_of(get(), name));
  const std::string file(name);
  Fd out(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  if (!out ||
      ::bind(out.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0 ||
      ::fchmodat(get(), file.c_str(), 0600, 0) != 0 || ::listen(out.get(), kBacklog) != 0)
    return fail_errno(path_ + "/" + file, "cannot listen");
  return out;
}

Result<Fd> RunDirectory::connect_to(std::string_view name, std::chrono::milliseconds limit) const {
  const sockaddr_un address = TRY(address_of(get(), name));
  Fd out(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!out) return fail_errno(name, "cannot make a socket");
  const auto end = Clock::now() + limit;
  Backoff pauses(kFirstPause, kLastPause);
  // EAGAIN: the listen queue is full.
  while (::connect(out.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0)
    if (errno != EINTR && (errno != EAGAIN || !pauses.sleep_before(end)))
      return fail_errno(path_ + "/" + std::string(name), "no process answers there");
  // check_peer() finds who listens, not as which service: a confined process that may write to the
  // directory can give another service's socket this name.
  if (bound_name(out.get()) != name)
    return fail(Error::with_code(EADDRNOTAVAIL, path_ + "/" + std::string(name), "cannot connect",
                                 "this socket was made as another service's"));
  (void)::fcntl(out.get(), F_SETFL, 0);
  return out;
}

bool RunDirectory::is_dead(std::string_view name) const {
  const auto socket = connect_to(name, std::chrono::milliseconds(0));
  return !socket && socket.error().code() == ECONNREFUSED;
}

void RunDirectory::remove(std::string_view name) const {
  (void)::unlinkat(get(), std::string(name).c_str(), 0);
}

std::vector<std::string> RunDirectory::names() const {
  std::vector<std::string> out;
  const int again = ::openat(get(), ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  DIR* listing = again < 0 ? nullptr : ::fdopendir(again);
  if (!listing) return out;
  while (const dirent* entry = ::readdir(listing)) out.emplace_back(entry->d_name);
  ::closedir(listing);
  return out;
}

Result<Fd> RunDirectory::lock(std::string_view what, std::chrono::milliseconds limit) const {
  Fd file(::openat(get(), kLocks, O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0600));
  if (!file) return fail_errno(path_ + "/" + kLocks, "cannot open");
  // Each lock is one byte of the file; a collision only makes callers wait.
  struct flock range {};
  range.l_type = F_WRLCK;
  range.l_whence = SEEK_SET;
  range.l_start =
      static_cast<off_t>(std::strtoull(hash_bytes(what).hex().substr(0, 15).c_str(), nullptr, 16));
  range.l_len = 1;
  const auto end = Clock::now() + limit;
  Backoff pauses(kFirstPause, kLastPause);
  while (::fcntl(file.get(), F_OFD_SETLK, &range) != 0) {
    if (errno != EAGAIN && errno != EACCES && errno != EINTR)
      return fail_errno(path_ + "/" + kLocks, "cannot lock");
    if (!pauses.sleep_before(end))
      return fail_errno(what, "is in use by another process", ETIMEDOUT);
  }
  return file;
}

bool is_trusted_peer(int socket) {
  return check_peer(socket, [](const Fd&, const Fd&) { return true; });
}

bool is_own_peer(int socket) { return check_peer(socket, is_as_free); }

bool is_own_server(int socket) {
  return check_peer(socket, [](const Fd& ours, const Fd& theirs) {
    return is_as_free(ours, theirs) || can_enter(ours, theirs);
  });
}

Result<void> answer_for(int listener) {
  // unix(7), SO_PEERCRED: a client gets the credentials of the last listen(2).
  if (::listen(listener, kBacklog) != 0) return fail_errno("the socket", "cannot listen");
  return {};
}

Result<std::string> own_confinement() {
  const Fd self = TRY(open_file("/proc/self", O_PATH | O_DIRECTORY));
  const auto c = TRY(confinement_of(self));
  return fmt::format("{:x} {:x} {} {} {}", c.permitted, c.bounding, c.no_new_privileges, c.seccomp,
                     c.filters);
}

}  // namespace heddle
