// SPDX-License-Identifier: MIT
#pragma once

#include <string>

#include "base/result.hpp"

namespace heddle {

/// Where a hook says things: on stderr, which runc shows and crun throws away, and in a file.
class HookLog {
 public:
  HookLog(std::string file, std::string container)
      : file_(std::move(file)), container_(std::move(container)) {}
  /// On one line, the hint in parentheses.
  void error(const Error& error) const;
  void warning(const std::string& text) const;
  /// In the file alone.
  void note(const std::string& text) const;

 private:
  void append(const std::string& text) const;
  std::string file_;
  std::string container_;
};

}  // namespace heddle
