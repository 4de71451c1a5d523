// SPDX-License-Identifier: MIT
#pragma once

#include <string>
#include <string_view>

#include "base/fd.hpp"

namespace heddle {

/// Files that a process may still open when it has given up all others (landlock(7)). What is open
/// already is not touched. Where the kernel has no Landlock all of this does nothing.
class Landlock {
 public:
  /// Nothing may be opened, made, removed or run; no TCP, no abstract unix socket of another's.
  Landlock();

  /// Whether the kernel has it.
  bool works() const { return static_cast<bool>(rules_); }
  /// What a process forked from this one needs to allow more; -1 where the kernel has none.
  int descriptor() const { return rules_.get(); }
  /// Lets files be read: the one at `path`, or all below it.
  Result<void> allow_reading(const std::string& path);
  /// From here on, for this thread and those it starts; one with no new privileges or
  /// CAP_SYS_ADMIN. `who` begins the error's message.
  Result<void> restrict_thread(std::string_view who) const;

 private:
  Fd rules_;
};

}  // namespace heddle
