// SPDX-License-Identifier: MIT
#include "base/temp_dir.hpp"

#include <fcntl.h>
#include <fts.h>
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

/// Whether `path` is on another file system than its parent.
bool is_mount_point(const std::string& path) {
  struct stat here {};
  struct stat above {};
  if (::lstat(path.c_str(), &here) != 0) return errno != ENOENT && errno != ENOTDIR;
  if (!S_ISDIR(here.st_mode)) return false;
  return ::stat((path + "/..").c_str(), &above) != 0 || here.st_dev != above.st_dev;
}

}  // namespace

Result<TempDir> TempDir::create(const std::string& prefix, std::string parent) {
  if (parent.empty()) {
    const char* tmp = std::getenv("TMPDIR");
    if (!tmp || !*tmp) return create(prefix, "/tmp");
    auto made = create(prefix, tmp);
    if (made) return made;
    // As tempnam(3); the failure is that of the user's $TMPDIR.
    auto second = create(prefix, "/tmp");
    return second ? std::move(second) : std::move(made);
  }
  // Absolute, since users of the path may change their working directory.
  if (std::error_code error; parent.front() != '/')
    if (const auto whole = std::filesystem::absolute(parent, error); !error)
      parent = whole.lexically_normal().string();
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
  // The failure may be temporary (no memory, a signal).
  for (int tries = 0; tries < 3 && !remove_tree(path_); ++tries) {
  }
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
  // Beyond RLIMIT_FSIZE writes fail with EFBIG; exec resets a handler to the default.
  action.sa_handler = [](int) {};
  install(SIGXFSZ);
}

Result<void> remove_tree(const std::string& path) {
  // The mount may show all files of the machine (fs-record's loopback).
  if (is_mount_point(path)) return fail_errno(path, "cannot remove", EBUSY);
  char* roots[] = {const_cast<char*>(path.c_str()), nullptr};
  std::unique_ptr<FTS, int (*)(FTS*)> walk(
      ::fts_open(roots, FTS_PHYSICAL | FTS_XDEV | FTS_NOCHDIR, nullptr), ::fts_close);
  if (!walk) return fail_errno(path, "cannot remove");
  int first_error = 0;
  while (FTSENT* entry = ::fts_read(walk.get())) {
    if (entry->fts_info == FTS_D) continue;
    if (entry->fts_info == FTS_NS && entry->fts_errno == ENOENT) continue;
    const int rc = entry->fts_info == FTS_DP || entry->fts_info == FTS_DNR
                       ? ::rmdir(entry->fts_accpath)
                       : ::unlink(entry->fts_accpath);
    if (rc != 0 && errno != ENOENT && !first_error) first_error = errno;
  }
  if (first_error) return fail_errno(path, "cannot remove", first_error);
  return {};
}

}  // namespace heddle
