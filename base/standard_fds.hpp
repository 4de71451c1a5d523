// SPDX-License-Identifier: MIT
#pragma once

#include <signal.h>

#include "base/result.hpp"

namespace heddle {

/// First thing in every program: fills the numbers 0, 1 and 2 where our caller closed them, so that
/// no map or socket gets one and receives what is meant for a terminal. Reading and writing them
/// still fails, and a program that we execute finds them closed as our caller left them.
void reserve_standard_fds();

/// What was printed is out, or the reason why it is not: data that did not arrive must not look
/// done.
Result<void> flush_stdout();

/// Writing to a pipe that nobody reads is EPIPE while this lives, not the end of the process: what
/// a wrapper has to say must not cost its program's exit status.
class SigpipeHeld {
 public:
  SigpipeHeld();
  SigpipeHeld(const SigpipeHeld&) = delete;
  SigpipeHeld& operator=(const SigpipeHeld&) = delete;
  ~SigpipeHeld();

 private:
  sigset_t before_;
  bool pending_ = false;  ///< before us: not ours to take away
};

}  // namespace heddle
