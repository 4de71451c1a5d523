// SPDX-License-Identifier: MIT
#pragma once

#include <signal.h>
#include <sys/types.h>

#include "base/fd.hpp"

namespace heddle {

/// Keeps signals from this process while it waits for APP, and hands them on. What the terminal
/// sends reaches the whole foreground group by itself (si_code SI_KERNEL) and is not doubled; what
/// a process sent to us alone is for APP. Constructed before fork; one at a time; single-threaded.
class SignalRelay {
 public:
  /// Blocks all signals that can be and opens a signalfd on them.
  static Result<SignalRelay> start();

  /// In the forked child, before exec: the caller's own mask and SIGCHLD disposition are put back.
  /// Async-signal-safe.
  void restore_in_child() const noexcept;
  /// Waits until `app` has ended, relaying signals; stops with it when it stops (job control).
  /// Result: its exit status, 128+n for a signal.
  Result<int> wait(pid_t app);
  /// After wait(): the signal that ended it, 0 for none.
  int ended_by() const noexcept { return ended_by_; }
  SignalRelay(SignalRelay&&) = default;
  SignalRelay& operator=(SignalRelay&&) = delete;
  /// Our own mask is put back as it was.
  ~SignalRelay();

 private:
  SignalRelay(Fd fd, const sigset_t& old_mask, const struct sigaction& old_chld)
      : fd_(std::move(fd)), old_mask_(old_mask), old_chld_(old_chld) {}
  void relay_pending(pid_t app);
  Fd fd_;
  sigset_t old_mask_;
  struct sigaction old_chld_;
  int ended_by_ = 0;
};

}  // namespace heddle
