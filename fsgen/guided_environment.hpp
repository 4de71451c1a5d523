// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.hpp"

namespace heddle {

/// A list of NAME=value, as execve(2) takes it. Values are bytes.
class Environment {
 public:
  /// A copy of this process's.
  static Environment current();
  explicit Environment(std::vector<std::string> entries) : entries_(std::move(entries)) {}

  std::optional<std::string> get(std::string_view name) const;
  void set(std::string_view name, std::string_view value);
  /// Puts `value` and a colon before what `name` holds.
  void prepend(std::string_view name, const std::string& value);
  const std::vector<std::string>& entries() const noexcept { return entries_; }

 private:
  std::vector<std::string> entries_;
};

/// For a daemon: ours without what the user means for APP alone. A preload or an auditor
/// would work there too and talk on its stderr, and one of heddle's own, of an fs-gen around us,
/// would hold that one's mount. LD_LIBRARY_PATH stays: our own libraries may need it.
std::vector<std::string> daemon_environment();

/// The installed audit library, beside which we are installed. Fails when it cannot be read.
Result<std::string> audit_library_path();

}  // namespace heddle
