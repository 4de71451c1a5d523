// SPDX-License-Identifier: MIT
#pragma once

#include <signal.h>

#include <functional>

#include "base/result.hpp"

namespace heddle {

/// Every program's main function: sets the name for messages, calls reserve_standard_fds(),
/// ignore_file_size_signal() and run_guarded().
int run_main(const char* program, const std::function<int()>& body);

/// What `body` returns; an exception is reported in one line and gives exit_failure.
int run_guarded(const std::function<int()>& body);

/// Opens descriptors 0, 1 and 2 that the caller closed, so that no map or socket gets such a number
/// and the output for a terminal. Reading and writing them still fails, and executed programs find
/// them closed.
void reserve_standard_fds();

/// From here on, also in forked children, a write beyond RLIMIT_FSIZE fails with EFBIG. What is
/// executed is not changed.
void ignore_file_size_signal();

/// Flushes stdout; fails if any earlier output was lost.
Result<void> flush_stdout();

/// While it exists, writing to a pipe without a reader is EPIPE and no SIGPIPE, so that a wrapper's
/// message does not change the exit status.
class SigpipeHeld {
 public:
  SigpipeHeld();
  SigpipeHeld(const SigpipeHeld&) = delete;
  SigpipeHeld& operator=(const SigpipeHeld&) = delete;
  ~SigpipeHeld();

 private:
  sigset_t before_;
  bool pending_ = false;  ///< a SIGPIPE was pending before and must stay
};

}  // namespace heddle
