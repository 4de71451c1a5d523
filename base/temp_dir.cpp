// SPDX-License-Identifier: MIT
#include "base/temp_dir.hpp"

#include <dirent.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <memory>

#include "base/trusted_path.hpp"

namespace heddle {
namespace {

/// A directory that a signal removes. Further ones are not removed.
struct Slot {
  std::atomic<bool> used = false;
  char path[PATH_MAX];
};
Slot slots[8];
pid_t slots_owner = 0;

/// Blocks all signals, so that none ends the process between creating a directory and recording it.
class SignalsHeld {
 public:
  SignalsHeld() {
    sigset_t all;
    ::sigfillset(&all);
    ::pthread_sigmask(SIG_BLOCK, &all, &before_);
  }
  SignalsHeld(const SignalsHeld&) = delete;
  SignalsHeld& operator=(const SignalsHeld&) = delete;
  ~SignalsHeld() { ::pthread_sigmask(SIG_SETMASK, &before_, nullptr); }

 private:
  sigset_t before_;
};

void record(const std::string& path) {
  for (auto& slot : slots) {
    if (slot.used || path.size() >= sizeof(slot.path)) continue;
    std::memcpy(slot.path, path.c_str(), path.size() + 1);
    slot.used = true;
    return;
  }
}

void forget(const std::string& path) {
  for (auto& slot : slots)
    if (slot.used && path == slot.path) slot.used = false;
}

struct RawEntry {  // getdents64(2)
  std::uint64_t ino;
  std::int64_t off;
  unsigned short length;
  unsigned char type;
  char name[1];
};

/// Removes `path` with its files and empty directories, unless it is a mount point.
/// Async-signal-safe (signal-safety(7)), which readdir(3) and fts(3) are not.
void remove_in_handler(const char* path) {
  const int directory = ::open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
  if (directory < 0) return;
  struct stat here {};
  struct stat above {};
  const bool own = ::fstat(directory, &here) == 0 && ::fstatat(directory, "..", &above, 0) == 0 &&
                   here.st_dev == above.st_dev;
  alignas(RawEntry) char buffer[4096];
  for (long got = 0;
       own && (got = ::syscall(SYS_getdents64, directory, buffer, sizeof(buffer))) > 0;)
    for (long at = 0; at < got;) {
      const auto* entry = reinterpret_cast<const RawEntry*>(buffer + at);
      at += entry->length;
      if (std::strcmp(entry->name, ".") == 0 || std::strcmp(entry->name, "..") == 0) continue;
      if (::unlinkat(directory, entry->name, 0) != 0)
        ::unlinkat(directory, entry->name, AT_REMOVEDIR);
    }
  ::close(directory);
  if (own) ::rmdir(path);
}

void on_signal(int number) {
  const int before = errno;
  ::signal(SIGQUIT, SIG_DFL);
  if (::getpid() == slots_owner)
    for (auto& slot : slots)
      if (slot.used) remove_in_handler(slot.path);
  ::signal(number, SIG_DFL);
  ::raise(number);  // ends the process when this handler, which blocks all signals, returns
  errno = before;
}

/// Removes what is in `directory`, but nothing on another file system. Names are resolved one at a
/// time: a user who moves directories meanwhile leads it nowhere else. Result: the first errno, or
/// 0.
int empty_directory(Fd directory, dev_t device) {
  const std::unique_ptr<DIR, int (*)(DIR*)> entries(::fdopendir(directory.get()), ::closedir);
  if (!entries) return errno;
  (void)directory.release();
  const int here = ::dirfd(entries.get());
  int first_error = 0;
  const auto note = [&](int error) {
    if (error != ENOENT && first_error == 0) first_error = error;
  };
  while (const auto* entry = ::readdir(entries.get())) {
    const char* name = entry->d_name;
    if (std::strcmp(name, ".") == 0 || std::strcmp(name, "..") == 0) continue;
    if (::unlinkat(here, name, 0) == 0) continue;
    if (errno != EISDIR && errno != EPERM) {  // EPERM: POSIX's for a directory
      note(errno);
      continue;
    }
    Fd below(::openat(here, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
    struct stat status {};
    if (!below) note(errno == ENOTDIR ? EPERM : errno);
    if (below && ::fstat(below.get(), &status) == 0 && status.st_dev == device)
      if (const int error = empty_directory(std::move(below), device); error != 0) note(error);
    if (::unlinkat(here, name, AT_REMOVEDIR) != 0) note(errno);
  }
  return first_error;
}

}  // namespace

Result<TempDir> TempDir::create(const std::string& prefix, std::string parent) {
  if (parent.empty()) {
    const char* tmp = std::getenv("TMPDIR");
    if (!tmp || !*tmp) return create(prefix, "/tmp");
    auto made = create(prefix, tmp);
    // Root's must not be exchanged by another user, whose directory sudo may have kept.
    if (made && is_systems_root())
      if (auto trusted = check_trusted_directory(made->path()); !trusted)
        made = fail(std::move(trusted.error()));
    if (made) return made;
    // As tempnam(3); the failure is that of the user's $TMPDIR.
    auto second = create(prefix, "/tmp");
    return second ? std::move(second) : std::move(made);
  }
  // Absolute, since users of the path may change their working directory.
  if (std::error_code error; parent.front() != '/')
    if (const auto whole = std::filesystem::absolute(parent, error); !error)
      parent = whole.lexically_normal().string();
  if (auto place = open_directory_to_write(parent); !place && place.error().code() == EPERM)
    return fail(std::move(place.error()));
  std::string path = parent + "/" + prefix + "-XXXXXX";
  const SignalsHeld held;
  if (!::mkdtemp(path.data())) return fail_errno(parent, "cannot make a temporary directory in it");
  record(path);
  return TempDir(std::move(path));
}

Result<void> TempDir::move_to(std::string path) {
  const SignalsHeld held;
  if (::rename(path_.c_str(), path.c_str()) != 0) return fail_errno(path, "cannot be made");
  forget(path_);
  path_ = std::move(path);
  record(path_);
  return {};
}

TempDir& TempDir::operator=(TempDir&& other) noexcept {
  if (this != &other) {
    remove();
    path_ = std::exchange(other.path_, {});
  }
  return *this;
}

TempDir::~TempDir() { remove(); }

void TempDir::remove() noexcept {
  if (path_.empty()) return;
  // The failure may be temporary (no memory, a signal). Without descriptors an empty one goes.
  bool is_gone = false;
  for (int tries = 0; tries < 3 && !is_gone; ++tries) is_gone = remove_tree(path_).has_value();
  if (!is_gone) (void)::rmdir(path_.c_str());
  forget(path_);
}

std::string TempDir::release() noexcept {
  forget(path_);
  return std::exchange(path_, {});
}

void clean_up_on_signals() {
  slots_owner = ::getpid();
  struct sigaction action {};
  action.sa_handler = on_signal;
  // A second signal does not interrupt the removal, since timeout(1) sends two. SIGQUIT does, in
  // case the file system hangs.
  ::sigfillset(&action.sa_mask);
  ::sigdelset(&action.sa_mask, SIGQUIT);
  const auto install = [&](int number) {
    struct sigaction before {};
    if (::sigaction(number, nullptr, &before) == 0 && before.sa_handler == SIG_DFL)
      ::sigaction(number, &action, nullptr);
  };
  for (const int n :
       {SIGHUP, SIGINT, SIGQUIT, SIGPIPE, SIGALRM, SIGTERM, SIGUSR1, SIGUSR2, SIGXCPU})
    install(n);
}

Result<void> remove_tree(const std::string& path) {
  const auto end = path.find_last_not_of('/') + 1;
  const auto slash = path.substr(0, end).rfind('/');
  // With a slash at its end openat(2) would follow a link.
  const auto name = path.substr(slash + 1, end - (slash + 1));
  if (name.empty() || name == "." || name == "..") return fail_errno(path, "cannot remove", EINVAL);
  const auto above =
      open_directory_to_write(slash == path.npos ? std::string() : path.substr(0, slash + 1));
  const auto gone = [](int error) { return error == ENOENT || error == ENOTDIR; };
  if (!above && gone(above.error().code())) return {};
  if (!above) return fail(above.error());
  struct stat here {
  }, around{};
  if (::fstat(above->get(), &around) != 0 ||
      ::fstatat(above->get(), name.c_str(), &here, AT_SYMLINK_NOFOLLOW) != 0) {
    if (gone(errno)) return {};
    return fail_errno(path, "cannot remove");
  }
  if (!S_ISDIR(here.st_mode)) {
    if (::unlinkat(above->get(), name.c_str(), 0) != 0 && errno != ENOENT)
      return fail_errno(path, "cannot remove");
    return {};
  }
  // The mount may show all files of the machine (fs-record's loopback).
  if (here.st_dev != around.st_dev) return fail_errno(path, "cannot remove", EBUSY);
  Fd directory(
      ::openat(above->get(), name.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  const bool same =
      directory && ::fstat(directory.get(), &here) == 0 && here.st_dev == around.st_dev;
  int error = same ? empty_directory(std::move(directory), around.st_dev) : 0;
  if (::unlinkat(above->get(), name.c_str(), AT_REMOVEDIR) != 0 && errno != ENOENT && error == 0)
    error = errno;
  if (error != 0) return fail_errno(path, "cannot remove", error);
  return {};
}

}  // namespace heddle
