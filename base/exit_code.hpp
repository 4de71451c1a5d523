// SPDX-License-Identifier: MIT
#pragma once

namespace heddle {

/// What every program's exit status means. One that runs APP returns APP's own, 128+n for a signal.
enum ExitCode : int {
  exit_done = 0,
  exit_no = 1,     ///< "no", "different", "incompatible"
  exit_usage = 2,  ///< the command line is wrong
  exit_failure = 3,
};

}  // namespace heddle
