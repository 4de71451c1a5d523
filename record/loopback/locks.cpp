// SPDX-License-Identifier: MIT
#include "record/loopback/locks.hpp"

#include <signal.h>
#include <sys/file.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <set>

namespace heddle::loopback {
namespace {

constexpr std::size_t kMostWaiting = 64;
constexpr std::size_t kMostEarly = 256;
constexpr std::uint64_t kToEnd = 0x7fffffffffffffffULL;  // OFFSET_MAX
constexpr int kWakeSignal = SIGUSR1;

bool overlap(const LockedRange& a, const LockedRange& b) {
  return a.start <= b.end && b.start <= a.end;
}

bool exclude(const LockedRange& a, const LockedRange& b) {
  return a.owner != b.owner && overlap(a, b) && (a.type == F_WRLCK || b.type == F_WRLCK);
}

struct flock as_flock(const LockedRange& range) {
  struct flock out {};
  out.l_type = range.type;
  out.l_whence = SEEK_SET;
  out.l_start = static_cast<off_t>(range.start);
  out.l_len = range.end >= kToEnd ? 0 : static_cast<off_t>(range.end - range.start + 1);
  return out;
}

int lock_range(int fd, int command, const LockedRange& range) {
  auto lock = as_flock(range);
  return ::fcntl(fd, command, &lock) == 0 ? 0 : errno;
}

/// Lets kWakeSignal interrupt the calling thread's fcntl(2) or flock(2). fs-record's signal relay
/// has blocked it.
void enable_wake_signal() {
  static const bool installed = [] {
    struct sigaction action {};
    action.sa_handler = [](int) {};
    return ::sigaction(kWakeSignal, &action, nullptr) == 0;
  }();
  sigset_t set;
  ::sigemptyset(&set);
  ::sigaddset(&set, kWakeSignal);
  if (installed) ::pthread_sigmask(SIG_UNBLOCK, &set, nullptr);
}

}  // namespace

void set_range(LockedRanges& ranges, const LockedRange& range) {
  LockedRanges out;
  for (const LockedRange& old : ranges) {
    if (old.owner != range.owner || !overlap(old, range)) {
      out.push_back(old);
      continue;
    }
    if (old.start < range.start) {
      out.push_back(old);
      out.back().end = range.start - 1;
    }
    if (old.end > range.end) {
      out.push_back(old);
      out.back().start = range.end + 1;
    }
  }
  if (range.type != F_UNLCK) out.push_back(range);
  ranges = std::move(out);
}

const LockedRange* find_conflict(const LockedRanges& ranges, const LockedRange& wanted) {
  const auto at = std::find_if(ranges.begin(), ranges.end(),
                               [&](const LockedRange& held) { return exclude(held, wanted); });
  return at == ranges.end() ? nullptr : &*at;
}

/// Gets the owner's open file. When that is read-only and the lock is for writing, another one
/// takes over its locks, which are for reading, so that both can hold them meanwhile. 0 or an
/// errno.
int Locks::own(const Wanted& wanted, const Open& open, std::shared_ptr<const Fd>& file) {
  const bool write = wanted.range.type == F_WRLCK;
  {
    const std::lock_guard lock(mutex_);
    const auto at = files_.find(wanted.node);
    if (at != files_.end()) {
      const auto owner = at->second.owners.find(wanted.range.owner);
      if (owner != at->second.owners.end() && (owner->second.writable || !write)) {
        file = owner->second.file;
        owner->second.handle = wanted.handle;
        return 0;
      }
    }
  }
  if (wanted.range.type == F_UNLCK) return 0;
  Owned owned;
  owned.handle = wanted.handle;
  owned.writable = wanted.access != O_RDONLY;
  Fd fd = open(owned.writable ? O_RDWR : O_RDONLY);
  if (!fd && wanted.access == O_WRONLY) fd = open(O_WRONLY);
  // The file's mode may be read-only by now.
  if (!fd && owned.writable && !write) {
    fd = open(O_RDONLY);
    owned.writable = false;
  }
  if (!fd) return errno;
  owned.file = std::make_shared<const Fd>(std::move(fd));
  std::shared_ptr<const Fd> before;  // closed without the lock
  const std::lock_guard lock(mutex_);
  File& all = files_[wanted.node];
  for (const LockedRange& held : all.ranges)
    if (held.owner == wanted.range.owner)
      if (const int rc = lock_range(owned.file->get(), F_OFD_SETLK, held); rc != 0) return rc;
  file = owned.file;
  auto& place = all.owners[wanted.range.owner];
  before = std::move(place.file);
  place = std::move(owned);
  return 0;
}

int Locks::test(const Wanted& wanted, const Open& open, LockedRange& range) {
  std::shared_ptr<const Fd> file;
  {
    const std::lock_guard lock(mutex_);
    const auto at = files_.find(wanted.node);
    if (at != files_.end()) {
      if (const auto* held = find_conflict(at->second.ranges, wanted.range)) {
        range = *held;
        return 0;
      }
      // The owner's own open file, because its own locks do not conflict.
      const auto owner = at->second.owners.find(wanted.range.owner);
      if (owner != at->second.owners.end()) file = owner->second.file;
    }
  }
  if (!file) {
    Fd fd = open(O_RDONLY);
    if (!fd) fd = open(wanted.access);
    if (!fd) return errno;
    file = std::make_shared<const Fd>(std::move(fd));
  }
  auto lock = as_flock(wanted.range);
  if (::fcntl(file->get(), F_OFD_GETLK, &lock) != 0) return errno;
  range = wanted.range;
  range.type = lock.l_type;
  range.pid = 0;
  if (lock.l_type == F_UNLCK) return 0;
  range.start = static_cast<std::uint64_t>(lock.l_start);
  range.end = lock.l_len == 0 ? kToEnd : range.start + static_cast<std::uint64_t>(lock.l_len) - 1;
  range.pid = std::max(0, static_cast<int>(lock.l_pid));
  return 0;
}

/// Whether the owners of conflicting locks wait, directly or through others, for the wanting owner.
bool Locks::is_cycle(const Wanted& wanted) const {
  std::vector<Wanted> look{wanted};
  std::set<std::uint64_t> seen;
  while (!look.empty()) {
    const Wanted at = look.back();
    look.pop_back();
    const auto file = files_.find(at.node);
    if (file == files_.end()) continue;
    for (const LockedRange& held : file->second.ranges) {
      if (!exclude(held, at.range)) continue;
      if (held.owner == wanted.range.owner) return true;
      if (!seen.insert(held.owner).second) continue;
      for (const Waiter& waiter : waiters_)
        if (waiter.wanted && waiter.wanted->range.owner == held.owner)
          look.push_back(*waiter.wanted);
    }
  }
  return false;
}

/// Registers the calling thread as a waiter (without `wanted` for flock), calls wait(), and repeats
/// try_once() until it is not interrupted, or interrupt() is called.
int Locks::wait_for(std::uint64_t unique, std::optional<Wanted> wanted,
                    const std::function<void()>& wait, const std::function<int()>& try_once) {
  std::list<Waiter>::iterator waiter;
  {
    const std::lock_guard lock(mutex_);
    if (wanted && is_cycle(*wanted)) return EDEADLK;
    if (waiters_.size() >= kMostWaiting) return ENOLCK;
    waiter = waiters_.emplace(waiters_.end());
    waiter->unique = unique;
    waiter->interrupted = std::find(early_.begin(), early_.end(), unique) != early_.end();
    waiter->thread = static_cast<std::int32_t>(::syscall(SYS_gettid));
    waiter->wanted = std::move(wanted);
  }
  wait();
  enable_wake_signal();
  int rc = EINTR;
  while (rc == EINTR && !waiter->interrupted) rc = try_once();
  const std::lock_guard lock(mutex_);
  waiters_.erase(waiter);
  return rc;
}

int Locks::set(const Wanted& wanted, const Open& open, const std::function<void()>* wait) {
  std::shared_ptr<const Fd> file;
  if (const int rc = own(wanted, open, file); rc != 0) return rc;
  if (!file) return 0;  // an unlock without locks
  const auto once = [&](int command) { return lock_range(file->get(), command, wanted.range); };
  // Without the mutex, because a network file system may be slow.
  int rc = once(F_OFD_SETLK);
  if (rc == EACCES) rc = EAGAIN;
  if (rc == EAGAIN && wait)
    rc = wait_for(wanted.unique, wanted, *wait, [&] { return once(F_OFD_SETLKW); });
  if (rc != 0) return rc;
  const std::lock_guard lock(mutex_);
  File& all = files_[wanted.node];
  // Another thread of the process may have closed a descriptor of the file meanwhile, and so
  // released all locks but this one.
  auto& owned = all.owners[wanted.range.owner];
  if (!owned.file) owned = {file, wanted.access != O_RDONLY, wanted.handle};
  set_range(all.ranges, wanted.range);
  return 0;
}

int Locks::flock(int fd, int operation, std::uint64_t unique, const std::function<void()>* wait) {
  const auto once = [&](int how) { return ::flock(fd, operation | how) == 0 ? 0 : errno; };
  const int rc = once(LOCK_NB);
  if (rc != EWOULDBLOCK || !wait) return rc;
  return wait_for(unique, std::nullopt, *wait, [&] { return once(0); });
}

void Locks::close_owner(std::uint64_t node, std::uint64_t owner) {
  std::shared_ptr<const Fd> closed;
  const std::lock_guard lock(mutex_);
  const auto at = files_.find(node);
  if (at == files_.end()) return;
  const auto owned = at->second.owners.find(owner);
  if (owned == at->second.owners.end()) return;
  closed = std::move(owned->second.file);
  at->second.owners.erase(owned);
  set_range(at->second.ranges, {owner, 0, kToEnd, F_UNLCK, 0});
  if (at->second.owners.empty()) files_.erase(at);
}

void Locks::close_handle(std::uint64_t node, const void* handle) {
  std::vector<std::uint64_t> owners;
  {
    const std::lock_guard lock(mutex_);
    const auto at = files_.find(node);
    if (at == files_.end()) return;
    for (const auto& [owner, owned] : at->second.owners)
      if (owned.handle == handle) owners.push_back(owner);
  }
  for (const auto owner : owners) close_owner(node, owner);
}

void Locks::interrupt(std::uint64_t unique) {
  const std::lock_guard lock(mutex_);
  for (Waiter& waiter : waiters_) {
    if (waiter.unique != unique) continue;
    waiter.interrupted = true;
    ::syscall(SYS_tgkill, ::getpid(), waiter.thread, kWakeSignal);
    return;
  }
  // Not waiting yet: the first try may be slow.
  early_.push_back(unique);
  if (early_.size() > kMostEarly) early_.pop_front();
}

void Locks::interrupt_again() {
  const std::lock_guard lock(mutex_);
  for (const Waiter& waiter : waiters_)
    if (waiter.interrupted) ::syscall(SYS_tgkill, ::getpid(), waiter.thread, kWakeSignal);
}

}  // namespace heddle::loopback
