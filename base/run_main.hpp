// SPDX-License-Identifier: MIT
#pragma once

#include <signal.h>

#include <functional>

#include "base/result.hpp"

namespace heddle {

/// The frame of every program's main: names the program for its messages, reserves descriptors 0
/// to 2 (reserve_standard_fds()), and runs `body`. Result: what `body` returns, the exit status; an
/// exception that leaves it is reported in one line and gives exit_failure.
int run_main(const char* program, const std::function<int()>& body);

/// The guard alone: what `body` returns, or exit_failure for an exception, reported in one line.
int run_guarded(const std::function<int()>& body);

/// First thing in every program: fills the numbers 0, 1 and 2 where our caller closed them, so that
/// no map or socket gets one and receives what is meant for a terminal. Reading and writing them
/// still fails, and a program that we execute finds them closed as our caller left them.
void reserve_standard_fds();

/// What was printed is out, or the reason why it is not: data that did not arrive must not look
/// done.
Result<void> flush_stdout();

/// Writing to a pipe without a reader is EPIPE while this lives, not the end of the process: what
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
