// SPDX-License-Identifier: MIT
#pragma once

#include <string>

#include "base/child.hpp"  // what most daemons begin with
#include "base/result.hpp"

namespace heddle {

/// Makes this process a daemon's: a session of its own, so that the terminal's signals stay away,
/// `/` as directory, an empty signal mask but for SIGTERM, SIGINT and SIGHUP, /dev/null as stdin
/// and stdout, and `log_path` (appended to) or /dev/null as stderr. Fails only when the log cannot
/// be opened.
Result<void> leave_terminal(const std::string& log_path);

}  // namespace heddle
