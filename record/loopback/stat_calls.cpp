// SPDX-License-Identifier: MIT
#include "record/loopback/stat_calls.hpp"

#include <sys/syscall.h>

#include "base/backoff.hpp"
#include "record/loopback/loopback.hpp"

namespace heddle::loopback {
namespace {

/// Two ticks of any kernel (20 ms), and the time until a thread that is answered runs.
constexpr std::int64_t kKeptMs = 1000;
/// A thread that only opens files, or asks about directories, is not looked at until it asks about
/// a file.
constexpr unsigned kMostInVain = 8;

/// Whether the call has a path, and answers with attributes of its last component alone.
bool is_stat_of_path(const Call& call) {
  const auto& in = call.arguments;
  switch (call.number) {
#ifdef SYS_stat
    case SYS_stat:
    case SYS_lstat:
      return true;
#endif
    case SYS_newfstatat:
      return (in[3] & AT_EMPTY_PATH) == 0;
    case SYS_statx:
      return (in[2] & (AT_EMPTY_PATH | AT_STATX_FORCE_SYNC)) == 0 && (in[3] & STATX_BTIME) == 0;
    default:
      return false;
  }
}

}  // namespace

StatCalls::Thread& StatCalls::thread(std::int32_t tid) {
  Thread& out = threads_[static_cast<std::uint32_t>(tid) % threads_.size()];
  if (out.tid != tid) {
    out = {};
    out.tid = tid;
  }
  return out;
}

bool StatCalls::is_stat(CallerRights& rights, std::int32_t tid) {
  const std::lock_guard lock(mutex_);
  Thread& it = thread(tid);
  if (it.in_vain >= kMostInVain || it.is_unreadable) return false;
  ++it.in_vain;
  const auto call = call_of(tid, it.call, rights);
  it.is_unreadable = !it.call;
  return is_stat_of_path(call);
}

void StatCalls::found(std::int32_t tid, std::uint64_t node, bool is_stat) {
  const std::lock_guard lock(mutex_);
  Thread& it = thread(tid);
  it.node = node;
  it.logged = is_stat;
  if (is_stat) it.in_vain = 0;
}

void StatCalls::give(std::int32_t tid, std::uint64_t node) {
  const auto now = monotonic_ms();
  const std::lock_guard lock(mutex_);
  if (now - given_since_ms_ >= kKeptMs) {
    given_before_ = std::exchange(given_, {});
    given_since_ms_ = now;
  }
  given_[node] = tid;
}

bool StatCalls::has_logged(CallerRights& rights, std::int32_t tid, std::uint64_t node) {
  const std::lock_guard lock(mutex_);
  Thread& it = thread(tid);
  if (std::exchange(it.node, 0) != node) return false;
  if (!it.logged) it.in_vain = 0;
  return it.logged && is_stat_of_path(call_of(tid, it.call, rights));
}

bool StatCalls::may_keep(std::int32_t tid, std::uint64_t node) {
  const std::lock_guard lock(mutex_);
  for (const auto* given : {&given_, &given_before_})
    if (const auto at = given->find(node); at != given->end()) return at->second != tid;
  return false;
}

}  // namespace heddle::loopback
