// SPDX-License-Identifier: MIT
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <mutex>
#include <unordered_map>

#include "record/loopback/request.hpp"

namespace heddle::loopback {

/// Saves the second request of stat(2), and the node's descriptor: if a thread in that call looks
/// up a regular file, the lookup logs the stat, too, and its attributes are valid until the end of
/// the kernel's next tick (8 ms at 250 Hz), so that no GETATTR follows. Every stat of a path still
/// begins with a lookup. They are not valid where another request than a stat may follow without a
/// lookup: if the run has the file open, or another thread has just looked it up. The kernel says
/// which call a thread is in (/proc/TID/syscall): the worst that a program can do is to have its
/// own stats logged wrong. Thread-safe.
class StatCalls {
 public:
  /// At a lookup: whether `tid` is in a stat of a path.
  bool is_stat(CallerRights& rights, std::int32_t tid);
  /// That lookup has found the regular file `node`, and logs the stat if it is one.
  struct Found {
    bool may_give = false;  ///< valid attributes, if the run does not have it open
    bool forget = false;    ///< the kernel may get attributes for another thread just now
  };
  Found found(std::int32_t tid, std::uint64_t node, bool is_stat);
  /// At GETATTR: whether the lookup has logged it: the attributes were not valid, or no longer when
  /// the thread ran again, or did not have all that it asks for.
  bool has_logged(CallerRights& rights, std::int32_t tid, std::uint64_t node);
  /// At an open: whether it came without a lookup (by a name in /proc/self/fd).
  bool opens_unseen(std::int32_t tid, std::uint64_t node);

 private:
  static constexpr std::size_t kMostThreads = 256;
  struct Thread {
    /// Its /proc/TID/syscall, which stays open, since to open it takes longer than the request that
    /// is saved.
    std::shared_ptr<Fd> call;
    bool is_unreadable = false;  ///< as under Yama's ptrace_scope, and before Linux 5.10
    std::uint64_t node = 0;      ///< of its last lookup of a regular file
    bool logged = false;         ///< the stat
    std::int64_t seen_ms = 0;
    // To read `call` takes half as long as the request that it may save: it is read where a stat of
    // a file has followed such lookups before.
    /// Its last six lookups, the newest in the lowest bit: 1 for a stat of a file.
    std::uint8_t past = 0;
    /// By `past`, how often one followed: 0 to 3.
    std::array<std::uint8_t, 64> odds{};
    bool is_undecided = false;  ///< whether its last lookup was one
    void decide(bool was_stat);
  };
  /// nullptr: there are too many.
  Thread* thread(std::int32_t tid, std::int64_t now_ms);
  Call read_call(std::unique_lock<std::mutex>& lock, CallerRights& rights, std::int32_t tid);

  std::mutex mutex_;
  std::unordered_map<std::int32_t, Thread> threads_;
  /// The threads that looked up a node last, in a stat and otherwise: since seen_since_ms_, and
  /// before.
  struct Seen {
    std::int32_t by_stat = 0, otherwise = 0;
  };
  std::unordered_map<std::uint64_t, Seen> seen_, seen_before_;
  std::int64_t seen_since_ms_ = 0;
};

}  // namespace heddle::loopback
