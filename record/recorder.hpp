// SPDX-License-Identifier: MIT
#pragma once

#include <atomic>
#include <bitset>
#include <mutex>

#include "record/callers.hpp"
#include "record/loopback/access_log.hpp"
#include "record/trace/trace_writer.hpp"
#include "record/walks.hpp"

namespace heddle {

struct RecorderOptions {
  std::bitset<trace::kOpCount> ops = std::bitset<trace::kOpCount>().set();
  bool each_io = false;
};

/// The loopback's accesses as the trace of one run: time, process and executable are added here.
/// Who tells waits while the trace cannot be written (a pipe that nobody reads): nothing is
/// dropped.
class Recorder final : public loopback::AccessLog {
 public:
  Recorder(trace::TraceWriter writer, const RecorderOptions& options);

  void start() override { on_ = true; }
  bool on() const noexcept override { return on_.load(std::memory_order_relaxed); }
  bool each_io() const noexcept override { return options_.each_io; }
  void add(trace::Event& event) override;

  /// What was added can be read in the file.
  void flush();
  /// Ends the trace; what comes after it is not recorded. Fails when it is not whole.
  Result<void> finish(bool complete, std::optional<int> exit_status);
  /// What was written.
  const trace::RunFooter& counts() const { return writer_.counts(); }

 private:
  std::uint64_t now() const;
  const RecorderOptions& options_;
  const std::uint64_t start_ns_;  ///< of CLOCK_MONOTONIC
  std::atomic<bool> on_ = false;  ///< the program runs, and its accesses are wanted
  Callers callers_;
  Walks walks_;
  std::mutex mutex_;
  trace::TraceWriter writer_;
  bool finished_ = false;
};

}  // namespace heddle
