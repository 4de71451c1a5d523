// SPDX-License-Identifier: MIT
#pragma once

#include "record/loopback/channel.hpp"

namespace heddle::loopback {

/// Makes the calling thread act with the rights of those it serves: file-system user and group,
/// supplementary groups and umask. The kernel then decides on the real file as it would have
/// decided for the caller. One object a thread, made in it.
///
/// Without root there is one user, ourselves, and only the umask changes. A caller's groups are
/// read from /proc/TID/status, because the protocol does not carry them; root's do not matter,
/// since his capabilities decide.
class CallerRights {
 public:
  CallerRights();
  /// For the request's caller. The kernel's own requests (write-back) run as ourselves.
  void assume(const Request& request);
  /// Our own, until the next assume().
  void assume_own();
  /// For what creates: the caller's umask is applied by the real file system, after default ACLs.
  void set_umask(unsigned mask);

 private:
  void become(std::uint32_t uid, std::uint32_t gid);
  bool may_switch_;
  std::uint32_t uid_;
  std::uint32_t gid_;
  std::uint32_t own_uid_;
  std::uint32_t own_gid_;
  unsigned umask_ = ~0U;
};

}  // namespace heddle::loopback
