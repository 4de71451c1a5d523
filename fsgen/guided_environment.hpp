// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.hpp"

namespace heddle {

/// A list of NAME=value, as execve(2) takes it; at first this process's own. Values are bytes.
class Environment {
 public:
  Environment();

  std::optional<std::string> get(std::string_view name) const;
  void set(std::string_view name, std::string_view value);
  /// Puts `value` first into the list of `name`, whose elements are separated by colons, once.
  void prepend(std::string_view name, const std::string& value);
  /// Takes each `value` out of the list of `name`.
  void remove(std::string_view name, const std::string& value);
  const std::vector<std::string>& entries() const noexcept { return entries_; }

 private:
  std::vector<std::string> entries_;
};

/// This process's, without the LD_ and HEDDLE_ variables that are meant for APP: a preload would
/// run in the daemon too, and the auditor of an outer fs-gen would hold that one's mount.
std::vector<std::string> daemon_environment();

/// Takes the variables of `fs-gen --print-env` out of this process's environment: a run without
/// heddle must not be guided by the shell's standing mount.
void leave_standing_mount();

/// The audit library of this installation. Fails when it cannot be read, or not be named in
/// LD_AUDIT.
Result<std::string> audit_library_path();

/// Adds the directories that `variable` lists, separated by colons.
void add_listed(std::vector<std::string>& directories, const char* variable);

}  // namespace heddle
