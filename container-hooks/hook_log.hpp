// SPDX-License-Identifier: MIT
#pragma once

#include <string>

#include "base/fd.hpp"

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
  /// The file is open from here on: it will not be found by its name any more.
  void keep_open();

 private:
  Result<Fd> open() const;
  void append(const std::string& text) const;
  std::string file_;
  std::string container_;
  Fd kept_;
};

}  // namespace heddle
