// SPDX-License-Identifier: MIT
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "base/child.hpp"

namespace heddle {

/// A program of ours that is installed beside fs-hook.
struct HelperRequest {
  std::string name;
  std::vector<std::string> arguments;
  std::vector<std::string> environment;  ///< besides PATH and LC_ALL: nothing of the caller's
  std::vector<std::pair<int, int>> fds;
  /// The write end of a pipe: when nobody is left to read it, the program is killed. -1: none.
  int reader = -1;
};

struct HelperAnswer {
  int status = 0;
  std::string out;
  std::string last_words;  ///< what it said on stderr, on one line, without its name
};

/// Starts it; its stdout and stderr are ours unless `fds` says otherwise.
Result<Child> start_helper(const HelperRequest& request);
/// Runs it to its end and collects what it prints: at most `limit` bytes.
Result<HelperAnswer> run_helper(const HelperRequest& request, std::size_t limit);

}  // namespace heddle
