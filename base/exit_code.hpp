// SPDX-License-Identifier: MIT
#pragma once

namespace heddle {

/// The exit status of every program. A program that runs APP returns APP's, 128+n for signal n.
enum ExitCode : int {
  exit_done = 0,
  exit_no = 1,     ///< "no", "different", "incompatible"
  exit_usage = 2,  ///< the command line is wrong
  exit_failure = 3,
};

}  // namespace heddle
