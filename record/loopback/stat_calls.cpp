// SPDX-License-Identifier: MIT
#include "record/loopback/stat_calls.hpp"

#include <sys/syscall.h>

#include "base/backoff.hpp"

namespace heddle::loopback {
namespace {

/// Two ticks of any kernel (20 ms), and the time until a thread that is answered runs.
constexpr std::int64_t kKeptMs = 1000;

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

void StatCalls::Thread::decide(bool was_stat) {
  if (!std::exchange(is_undecided, false)) return;
  auto& chance = odds[past];
  if (was_stat && chance < 3) ++chance;
  if (!was_stat && chance > 0) --chance;
  past = static_cast<std::uint8_t>((past << 1U | (was_stat ? 1U : 0U)) % odds.size());
}

StatCalls::Thread* StatCalls::thread(std::int32_t tid, std::int64_t now_ms) {
  auto at = threads_.find(tid);
  if (at == threads_.end()) {
    if (threads_.size() >= kMostThreads)
      std::erase_if(threads_,
                    [&](const auto& each) { return each.second.seen_ms < now_ms - kKeptMs; });
    if (threads_.size() >= kMostThreads) return nullptr;
    at = threads_.try_emplace(tid).first;
  }
  at->second.seen_ms = now_ms;
  return &at->second;
}

/// Without the lock: the kernel may take a tick to answer.
Call StatCalls::read_call(std::unique_lock<std::mutex>& lock, CallerRights& rights,
                          std::int32_t tid) {
  auto file = std::exchange(threads_[tid].call, nullptr);
  lock.unlock();
  if (!file) file = std::make_shared<Fd>();
  const auto call = call_of(tid, *file, rights);
  lock.lock();
  if (const auto at = threads_.find(tid); at != threads_.end()) {
    at->second.is_unreadable = !*file;
    at->second.call = std::move(file);
  }
  return call;
}

bool StatCalls::is_stat(CallerRights& rights, std::int32_t tid) {
  std::unique_lock lock(mutex_);
  Thread* it = thread(tid, monotonic_ms());
  if (!it || it->is_unreadable) return false;
  it->decide(false);
  it->is_undecided = true;
  return it->odds[it->past] > 0 && is_stat_of_path(read_call(lock, rights, tid));
}

StatCalls::Found StatCalls::found(std::int32_t tid, std::uint64_t node, bool is_stat) {
  const auto now = monotonic_ms();
  const std::lock_guard lock(mutex_);
  if (Thread* it = thread(tid, now)) {
    it->node = node;
    it->logged = is_stat;
    if (is_stat) it->decide(true);
  }
  if (now - seen_since_ms_ >= kKeptMs) {
    seen_before_ = std::exchange(seen_, {});
    seen_since_ms_ = now;
  }
  Seen before;
  if (const auto at = seen_before_.find(node); at != seen_before_.end()) before = at->second;
  Seen& seen = seen_[node];
  if (seen.by_stat == 0) seen.by_stat = before.by_stat;
  if (seen.otherwise == 0) seen.otherwise = before.otherwise;
  const auto is_others = [&](std::int32_t last) { return last != 0 && last != tid; };
  const Found out{.may_give = is_stat && !is_others(seen.otherwise),
                  .forget = !is_stat && is_others(seen.by_stat)};
  (is_stat ? seen.by_stat : seen.otherwise) = tid;
  return out;
}

bool StatCalls::has_logged(CallerRights& rights, std::int32_t tid, std::uint64_t node) {
  const auto now = monotonic_ms();
  std::unique_lock lock(mutex_);
  const auto at = threads_.find(tid);
  if (at == threads_.end() || std::exchange(at->second.node, 0) != node) return false;
  Thread& it = at->second;
  if (!it.logged) it.decide(true);
  if (!it.logged || it.seen_ms < now - kKeptMs) return false;
  const auto call = read_call(lock, rights, tid);
  return call.number == -1 || is_stat_of_path(call);
}

bool StatCalls::opens_unseen(std::int32_t tid, std::uint64_t node) {
  const std::lock_guard lock(mutex_);
  const auto at = threads_.find(tid);
  return at == threads_.end() || std::exchange(at->second.node, 0) != node || at->second.logged;
}

}  // namespace heddle::loopback
