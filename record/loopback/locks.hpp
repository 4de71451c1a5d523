// SPDX-License-Identifier: MIT
#pragma once

#include <fcntl.h>

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "base/fd.hpp"

namespace heddle::loopback {

struct LockedRange {
  std::uint64_t owner = 0;
  std::uint64_t start = 0, end = 0;  ///< both included
  short type = F_UNLCK;
  std::int32_t pid = 0;
};
/// The locked ranges of one file. As in fcntl(2), an owner's new lock replaces its old ones there.
using LockedRanges = std::vector<LockedRange>;
void set_range(LockedRanges& ranges, const LockedRange& range);
/// A lock that conflicts with `wanted`, or nullptr.
const LockedRange* find_conflict(const LockedRanges& ranges, const LockedRange& wanted);

/// Takes the run's locks on the real files, where processes outside and other recorders see them.
///
/// For each file that it locks, an owner (a process, or an open file for F_OFD_SETLK) has an open
/// file description with OFD locks. It is closed, and the locks released, when the owner closes any
/// of its descriptors of the file. flock(2) locks are on the handle's descriptor. Held ranges are
/// stored too, so that F_GETLK names the process and a cycle of waiting owners is EDEADLK.
/// Thread-safe.
class Locks {
 public:
  /// Opens the node's file with an O_ACCMODE and the recorder's rights. Invalid and errno on
  /// failure.
  using Open = std::function<Fd(int access)>;

  struct Wanted {
    std::uint64_t node = 0;
    LockedRange range;
    int access = O_RDONLY;  ///< of the handle
    const void* handle = nullptr;
    std::uint64_t unique = 0;  ///< of the request, for interrupt()
  };

  /// F_GETLK: `range` becomes the conflicting lock (pid 0: unknown, as another recorder's), or its
  /// type F_UNLCK. 0 or an errno.
  int test(const Wanted& wanted, const Open& open, LockedRange& range);
  /// F_SETLK; with `wait`, F_SETLKW: wait() is called before the thread waits. 0 or an errno:
  /// EAGAIN (conflict), EINTR (interrupt()), EDEADLK, ENOLCK (too many waiters), open()'s.
  int set(const Wanted& wanted, const Open& open, const std::function<void()>* wait);
  /// flock(2) on `fd`; as above.
  int flock(int fd, int operation, std::uint64_t unique, const std::function<void()>* wait);

  /// Releases the locks of an owner that closed a descriptor of the file.
  void close_owner(std::uint64_t node, std::uint64_t owner);
  /// Releases the locks taken by an open file whose last descriptor was closed.
  void close_handle(std::uint64_t node, const void* handle);
  /// Ends the request's waiting, also when it has not begun yet.
  void interrupt(std::uint64_t unique);
  /// To be called periodically: a signal may have arrived before its thread slept.
  void interrupt_again();

 private:
  struct Owned {
    std::shared_ptr<const Fd> file;
    bool writable = false;
    const void* handle = nullptr;
  };
  struct File {
    std::map<std::uint64_t, Owned> owners;
    LockedRanges ranges;
  };
  struct Waiter {
    std::uint64_t unique;
    std::int32_t thread;
    std::atomic<bool> interrupted = false;
    std::optional<Wanted> wanted;  ///< none: flock
  };
  int own(const Wanted& wanted, const Open& open, std::shared_ptr<const Fd>& file);
  bool is_cycle(const Wanted& wanted) const;
  int wait_for(std::uint64_t unique, std::optional<Wanted> wanted,
               const std::function<void()>& wait, const std::function<int()>& try_once);

  std::mutex mutex_;
  std::map<std::uint64_t, File> files_;  ///< by node
  std::list<Waiter> waiters_;
  std::deque<std::uint64_t> early_;  ///< newest requests interrupted before they waited
};

}  // namespace heddle::loopback
