// SPDX-License-Identifier: MIT
#include "base/signal_cleanup.hpp"

#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstring>

namespace heddle {
namespace {

struct Slot {
  std::atomic<bool> used = false;
  char path[PATH_MAX];
};
Slot g_slots[8];
pid_t g_owner = 0;

struct RawEntry {  // getdents64(2)
  std::uint64_t ino;
  std::int64_t off;
  unsigned short length;
  unsigned char type;
  char name[1];
};

/// Async-signal-safe (signal-safety(7)): readdir(3) and fts(3) are not.
void remove_directory(const char* path) {
  const int directory = ::open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
  if (directory < 0) return;
  struct stat here {};
  struct stat above {};
  // What is mounted there may be all files of the machine (fs-record's loopback).
  if (::fstat(directory, &here) != 0 || ::fstatat(directory, "..", &above, 0) != 0 ||
      here.st_dev != above.st_dev) {
    ::close(directory);
    return;
  }
  alignas(RawEntry) char buffer[4096];
  for (;;) {
    const long got = ::syscall(SYS_getdents64, directory, buffer, sizeof(buffer));
    if (got <= 0) break;
    for (long at = 0; at < got;) {
      const auto* entry = reinterpret_cast<const RawEntry*>(buffer + at);
      at += entry->length;
      if (std::strcmp(entry->name, ".") == 0 || std::strcmp(entry->name, "..") == 0) continue;
      if (::unlinkat(directory, entry->name, 0) != 0)
        ::unlinkat(directory, entry->name, AT_REMOVEDIR);
    }
  }
  ::close(directory);
  ::rmdir(path);
}

void on_signal(int number) {
  const int before = errno;
  ::signal(SIGQUIT, SIG_DFL);
  if (::getpid() == g_owner)
    for (auto& slot : g_slots)
      if (slot.used) remove_directory(slot.path);
  ::signal(number, SIG_DFL);
  ::raise(number);  // ends us when this handler, which holds back all signals, returns
  errno = before;
}

}  // namespace

void clean_up_on_signals() {
  g_owner = ::getpid();
  struct sigaction action {};
  action.sa_handler = on_signal;
  // A second one does not end us half-way: timeout(1) sends two, and so do users at the keyboard.
  // But for Ctrl-\, where a directory's server does not answer.
  ::sigfillset(&action.sa_mask);
  ::sigdelset(&action.sa_mask, SIGQUIT);
  for (const int n :
       {SIGHUP, SIGINT, SIGQUIT, SIGPIPE, SIGALRM, SIGTERM, SIGUSR1, SIGUSR2, SIGXCPU, SIGXFSZ}) {
    struct sigaction before {};
    if (::sigaction(n, nullptr, &before) == 0 && before.sa_handler == SIG_DFL)
      ::sigaction(n, &action, nullptr);
  }
}

void remember_directory(const std::string& path) noexcept {
  for (auto& slot : g_slots) {
    if (slot.used || path.size() >= sizeof(slot.path)) continue;
    std::memcpy(slot.path, path.c_str(), path.size() + 1);
    slot.used = true;
    return;
  }
}

void forget_directory(const std::string& path) noexcept {
  for (auto& slot : g_slots)
    if (slot.used && path == slot.path) slot.used = false;
}

}  // namespace heddle
