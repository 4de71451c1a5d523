// SPDX-License-Identifier: MIT
#pragma once

#include <signal.h>

#include <chrono>
#include <optional>

#include "fuseovl/session/succession.hpp"
#include "fuseovl/supervise/serve.hpp"
#include "fuseovl/supervise/worker_sandbox.hpp"

namespace heddle {

/// Blocks the signals that the supervisor takes, and puts back what was.
class TakenSignals {
 public:
  TakenSignals();
  TakenSignals(const TakenSignals&) = delete;
  TakenSignals& operator=(const TakenSignals&) = delete;
  ~TakenSignals() { ::pthread_sigmask(SIG_SETMASK, &before_, nullptr); }

 private:
  sigset_t before_{};
};

/// The process that holds a mount's device and files and watches over the worker, for serve(). It
/// touches no file that is served and no name in the mount: nothing that hangs there hangs it.
class Supervisor {
 public:
  /// Both must outlive it.
  Supervisor(Overlay& overlay, Fd device, ServeOptions& options);

  /// Until the session has ended.
  Result<void> run();

 private:
  // The worker's life.
  Result<void> start();
  Result<void> start_with_patience();
  std::optional<int> reap();
  std::optional<int> stuck_end();
  /// False: the session has ended.
  Result<bool> after_worker(int status);
  Result<void> follow(const std::string& how);
  void rest(std::chrono::milliseconds pause);

  // The end.
  void take_signals();
  void end_by_signal();
  bool worker_ends_within(std::chrono::milliseconds limit) const;
  bool detach() const;
  [[noreturn]] void end_at_once() const;

  using Clock = std::chrono::steady_clock;
  Overlay& overlay_;
  ServingState& state_;
  Fd device_;
  ServeOptions& options_;
  WorkerSandbox sandbox_;
  sigset_t set_;
  Fd signals_;  ///< signalfd(2)
  pid_t worker_ = -1;
  Fd worker_thread_;  ///< readable when a thread of it has ended; before Linux 6.9, when all have
  bool thread_watched_ = false;
  std::optional<pid_t> stager_;
  Succession succession_;
  bool leaving_ = false;
};

}  // namespace heddle
