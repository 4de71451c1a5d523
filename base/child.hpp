// SPDX-License-Identifier: MIT
#pragma once

// Child processes that run a function of ours. base/process.hpp has Child itself and spawn(), for
// programs. This is the one place that calls fork() without exec.

#include <chrono>
#include <functional>
#include <optional>
#include <vector>

#include "base/child_end.hpp"
#include "base/process.hpp"

namespace heddle {

struct ForkOptions {
  /// SIGKILL reaches the child when the thread that forked it ends.
  bool dies_with_parent = true;
  /// The descriptors from 3 on that the child keeps; nullopt: all of them.
  std::optional<std::vector<int>> keep;
  /// Standard input, output and error become /dev/null; `log` (if >= 0) stands for the last two.
  bool null_stdio = false;
  int log = -1;
  /// All signals unblocked and at their default dispositions.
  bool default_signals = true;
  /// Shown by ps(1), at most 15 bytes; nullptr: the parent's.
  const char* name = nullptr;
};

/// Forks a child that runs `body` and ends with the status that it returns, exit handlers and
/// destructors of the parent's objects not run. An exception that leaves `body` is reported in one
/// line and gives exit_failure.
/// Failure: fork(2)'s, errno in code(); nothing runs then.
Result<Child> fork_child(const ForkOptions& options, const std::function<int()>& body);

/// Runs `body` in a child of its own and waits at most `limit`. Result: what `body` returned, its
/// error with code and hint. Failure ETIMEDOUT: killed and abandoned, for it may be waiting in the
/// kernel for a file server and is not waited for; ECHILD: it died without an answer.
Result<void> run_in_child(std::chrono::milliseconds limit, const ForkOptions& options,
                          const std::function<Result<void>()>& body);

}  // namespace heddle
