// SPDX-License-Identifier: MIT
#include "record/callers.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <climits>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "base/fd.hpp"

namespace heddle {
namespace {

// A process id is not used again within this time: they are given out in a circle.
constexpr std::uint64_t kTrustNs = 50'000'000;
// Between the exec event and the change of /proc/PID/exe lie the look-ups and reads of the program
// and its interpreter.
constexpr unsigned kRechecks = 64;
constexpr std::size_t kMostKnown = 20'000;

/// Field Tgid of /proc/TID/status. Nothing here may take the process's mmap lock (cmdline, maps):
/// the thread may hold it while it waits for our answer to a page fault.
std::int32_t process_of(std::int32_t tid) {
  char path[48];
  std::snprintf(path, sizeof(path), "/proc/%d/status", tid);
  const Fd fd(::open(path, O_RDONLY | O_CLOEXEC));
  char text[512];
  const ssize_t n = fd ? ::read(fd.get(), text, sizeof(text) - 1) : -1;
  if (n <= 0) return tid;
  text[n] = '\0';
  const char* at = std::strstr(text, "\nTgid:");
  return at ? static_cast<std::int32_t>(std::atoi(at + 6)) : tid;
}

}  // namespace

std::string_view Callers::intern(std::string_view text) { return *texts_.emplace(text).first; }

std::string_view Callers::read_exe(std::int32_t tid) {
  char path[48];
  std::snprintf(path, sizeof(path), "/proc/%d/exe", tid);
  char text[PATH_MAX];
  const ssize_t n = ::readlink(path, text, sizeof(text));
  return n <= 0 ? std::string_view() : intern({text, static_cast<std::size_t>(n)});
}

Caller Callers::of(std::int32_t tid, std::uint64_t now_ns) {
  if (tid == 0) return {};
  const std::lock_guard lock(mutex_);
  if (known_.size() > kMostKnown) known_.clear();
  auto& known = known_[tid];
  if (known.seen_ns == 0 || now_ns > known.seen_ns + kTrustNs) {
    const auto exe = read_exe(tid);
    if (!exe.empty() || known.seen_ns == 0) known.caller = {process_of(tid), exe};
  } else if (known.recheck > 0) {
    const auto exe = read_exe(tid);
    --known.recheck;
    if (!exe.empty() && exe != known.caller.exe) {
      known.caller.exe = exe;
      known.recheck = 0;
    }
  }
  known.seen_ns = now_ns | 1U;
  return known.caller;
}

void Callers::executes(std::int32_t tid) {
  const std::lock_guard lock(mutex_);
  if (const auto at = known_.find(tid); at != known_.end()) at->second.recheck = kRechecks;
}

}  // namespace heddle
