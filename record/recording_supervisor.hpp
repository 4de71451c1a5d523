// SPDX-License-Identifier: MIT
#pragma once

#include <chrono>
#include <optional>
#include <set>

#include "fuseovl/session/succession.hpp"
#include "record/recorder.hpp"
#include "record/trace/trace_writer.hpp"

namespace heddle {

/// Keeps a recording going: one thread that holds the device, all that is open and the trace, and
/// writes what the worker tells. A worker that dies is followed by another, which finds in the
/// memory they share what the dead one knew, and gets from the kernel what that one had not
/// answered. It is named in the trace.
class RecordingSupervisor {
 public:
  RecordingSupervisor(RecordingMemory& memory, const RecorderOptions& options,
                      trace::TraceWriter writer, Fd device);
  /// Starts the first worker. What is open now stays open; the caller has no other threads.
  Result<void> start();

  enum class Until : std::uint8_t { input, worker_ended, time };
  /// Writes and follows until there is something to read from `input` (-1: nothing to wait for),
  /// the last worker has ended, or the time is up.
  Until run(int input, std::optional<std::chrono::milliseconds> limit);

  /// Ends the trace; what the worker does after it is not recorded. Fails when the trace is not
  /// whole, or workers could not go on.
  Result<void> finish(bool complete, std::optional<int> exit_status);
  /// What was written.
  const trace::RunFooter& counts() const { return writer_.counts(); }
  /// Ends the worker, if there is one.
  void kill_worker();

 private:
  Result<void> start_worker();
  void write_events();
  void see_to_worker();
  Result<void> follow();
  void close_unknown() const;

  RecordingMemory& memory_;
  const RecorderOptions& options_;
  trace::TraceWriter writer_;
  Fd device_;
  Fd children_;            ///< a signalfd(2) for SIGCHLD
  std::set<int> own_fds_;  ///< open before the first worker
  Succession succession_;
  pid_t worker_ = -1;  ///< -1: none, any more
  bool finished_ = false;
  std::optional<Error> failure_;  ///< why no worker could go on
};

}  // namespace heddle
