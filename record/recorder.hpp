// SPDX-License-Identifier: MIT
#pragma once

#include <atomic>
#include <bitset>

#include "record/callers.hpp"
#include "record/event_queue.hpp"
#include "record/loopback/access_log.hpp"
#include "record/walks.hpp"

namespace heddle {

struct RecorderOptions {
  std::bitset<trace::kOpCount> ops = std::bitset<trace::kOpCount>().set();
  bool each_io = false;
};

/// The loopback's accesses as events of one run: time, process and executable are added here.
class Recorder final : public loopback::AccessLog {
 public:
  Recorder(trace::TraceWriter writer, const RecorderOptions& options);

  void start() override { on_ = true; }
  bool on() const noexcept override { return on_; }
  bool each_io() const noexcept override { return options_.each_io; }
  void add(trace::Event& event) override;

  /// Ends the run; accesses after it are not recorded.
  Result<void> finish(bool complete, std::optional<int> exit_status);
  std::uint64_t events() const noexcept { return queue_.written(); }

 private:
  std::uint64_t now() const;
  RecorderOptions options_;
  std::uint64_t start_ns_;
  std::atomic<bool> on_{false};
  Callers callers_;
  Walks walks_;
  EventQueue queue_;  // last: it goes first, and holds views into callers_
};

}  // namespace heddle
