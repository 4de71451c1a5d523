// SPDX-License-Identifier: MIT
#pragma once

#include <array>
#include <cstdint>
#include <mutex>
#include <unordered_map>

#include "record/loopback/request.hpp"

namespace heddle::loopback {

/// Saves the second request of stat(2), and the node's descriptor: if a thread in that call looks
/// up a regular file, the lookup logs the stat, too, and its attributes are valid until the end of
/// the kernel's next tick (8 ms at 250 Hz), so that no GETATTR follows. Every stat of a path still
/// begins with a lookup. Those of a file that the run has open are not valid: its fstat(2) makes no
/// lookup. The kernel says which call a thread is in (/proc/TID/syscall): the worst that a program
/// can do is to have its own stats logged wrong. Thread-safe.
class StatCalls {
 public:
  /// At a lookup: whether `tid` is in a stat of a path.
  bool is_stat(CallerRights& rights, std::int32_t tid);
  /// That lookup has found the regular file `node`, and logs the stat if it is one.
  void found(std::int32_t tid, std::uint64_t node, bool is_stat);
  /// The answer's attributes are valid.
  void give(std::int32_t tid, std::uint64_t node);
  /// At GETATTR: whether the lookup has logged it: the attributes were no longer valid when the
  /// thread ran again, or did not have all that it asks for.
  bool has_logged(CallerRights& rights, std::int32_t tid, std::uint64_t node);
  /// At an open: whether the kernel may keep the node's attributes for another thread that is in
  /// stat(2) at the same time.
  bool may_keep(std::int32_t tid, std::uint64_t node);

 private:
  /// Of a thread: its /proc/TID/syscall, which stays open, since to open it takes longer than the
  /// request that is saved.
  struct Thread {
    std::int32_t tid = 0;
    Fd call;
    bool is_unreadable = false;  ///< as under Yama's ptrace_scope, and before Linux 5.10
    std::uint64_t node = 0;      ///< of its last lookup of a regular file
    bool logged = false;         ///< the stat
    unsigned in_vain = 0;        ///< so many lookups of no such call, one after the other
  };
  Thread& thread(std::int32_t tid);

  std::mutex mutex_;
  std::array<Thread, 64> threads_;
  /// The thread that was given a node's attributes last: since given_since_ms_, and before.
  std::unordered_map<std::uint64_t, std::int32_t> given_, given_before_;
  std::int64_t given_since_ms_ = 0;
};

}  // namespace heddle::loopback
