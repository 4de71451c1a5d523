// SPDX-License-Identifier: MIT
#pragma once

#include <string>
#include <string_view>

#include "base/fd.hpp"

namespace heddle {

/// The files that a restricted process may still open (landlock(7)). Open files are not affected.
/// Without Landlock in the kernel nothing is restricted.
class Landlock {
 public:
  /// Denies opening, creating, removing and executing files, TCP, and others' abstract unix
  /// sockets.
  Landlock();

  /// Whether the kernel has Landlock.
  bool works() const { return static_cast<bool>(rules_); }
  /// The ruleset's descriptor, for a forked process that allows more; -1 without Landlock.
  int descriptor() const { return rules_.get(); }
  /// Allows reading `path`, a file or a directory with everything below.
  Result<void> allow_reading(const std::string& path);
  /// Allows reading all files below the open directory, without a request to its file system.
  Result<void> allow_reading_below(int directory);
  /// Restricts this thread and those it starts. Requires no_new_privs or CAP_SYS_ADMIN. `who`
  /// begins the error's message.
  Result<void> restrict_thread(std::string_view who) const;

 private:
  Fd rules_;
};

}  // namespace heddle
