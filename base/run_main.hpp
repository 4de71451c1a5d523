// SPDX-License-Identifier: MIT
#pragma once

#include <functional>

namespace heddle {

/// The frame of every program's main: names the program for its messages, reserves descriptors 0
/// to 2 (reserve_standard_fds()), and runs `body`. Result: what `body` returns, the exit status; an
/// exception that leaves it is reported in one line and gives exit_failure.
int run_main(const char* program, const std::function<int()>& body);

/// The guard alone: what `body` returns, or exit_failure for an exception, reported in one line.
int run_guarded(const std::function<int()>& body);

}  // namespace heddle
