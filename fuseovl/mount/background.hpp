// SPDX-License-Identifier: MIT
#pragma once

#include <span>
#include <string>

#include "base/result.hpp"

namespace heddle {

/// Closes every descriptor from 3 on but those in `keep`: a daemon must not hold its caller's pipes
/// open.
void close_fds_but(std::span<const int> keep);

/// Makes this process a daemon's: a session of its own, so that the terminal's signals stay away,
/// `/` as folder, an empty signal mask but for SIGTERM, SIGINT and SIGHUP, /dev/null as stdin and
/// stdout, and `log_path` (appended to) or /dev/null as stderr. Fails only when the log cannot be
/// opened.
Result<void> leave_terminal(const std::string& log_path);

}  // namespace heddle
