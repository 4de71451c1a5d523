// SPDX-License-Identifier: MIT
#pragma once

#include <linux/fuse.h>
#include <sys/stat.h>

#include <cstdint>
#include <vector>

namespace heddle::loopback {

/// Makes the calling thread act with the rights of those it serves: file-system user and group,
/// supplementary groups, umask, and the capabilities that matter for files. The kernel then decides
/// on the real file as it would have decided for the caller. One object a thread, made in it.
///
/// The protocol carries user and group; the rest is asked of the kernel, for each request, since it
/// may change between any two: capget(2), and /proc/TID/status where groups count. A caller in a
/// user namespace of its own has no capability here; root in one is looked at 50 times a second and
/// after each exec.
///
/// Without root there is one user, ourselves, and only the umask changes.
class CallerRights {
 public:
  CallerRights();
  CallerRights(const CallerRights&) = delete;
  CallerRights& operator=(const CallerRights&) = delete;

  /// Whether callers have rights of their own: we are root.
  static bool are_many();
  /// For the request's caller. The kernel's own requests (write-back) run as ourselves. False: what
  /// the caller may do cannot be told.
  bool assume(const fuse_in_header& header);
  /// Our own, until the next assume().
  void assume_own();
  /// For what creates: the caller's umask is applied by the real file system, after default ACLs.
  void set_umask(unsigned mask);
  /// Whether the caller may access the file by its mode alone: for kernels that cannot be asked.
  bool may_by_mode(const struct statx& st, int mask) const;
  /// The caller's namespaces may be others from here on.
  void forget_caller() { known_tid_ = 0; }

 private:
  friend class OwnRights;
  struct State {
    std::uint32_t uid = 0;
    std::uint32_t gid = 0;
    std::uint64_t capabilities = 0;  ///< effective ones
    bool operator==(const State&) const = default;
  };
  bool root_counts(std::int32_t tid);
  void become(const State& state);
  bool may_switch_;
  State now_;
  State own_;
  std::vector<std::uint32_t> groups_;
  unsigned umask_ = ~0U;
  std::int32_t known_tid_ = 0;  ///< root's, known to be in our user namespace
  std::int64_t known_until_ms_ = 0;
};

/// Our own rights, while it lives.
class OwnRights {
 public:
  explicit OwnRights(CallerRights& rights) : rights_(rights), before_(rights.now_) {
    rights_.assume_own();
  }
  OwnRights(const OwnRights&) = delete;
  OwnRights& operator=(const OwnRights&) = delete;
  ~OwnRights() { rights_.become(before_); }

 private:
  CallerRights& rights_;
  CallerRights::State before_;
};

/// Gives up, for the process and for ever, what serving callers does not need. Before the first
/// thread.
void keep_callers_capabilities();

}  // namespace heddle::loopback
