// SPDX-License-Identifier: MIT
#pragma once

#include <atomic>
#include <bitset>

#include "fuseovl/session/shared.hpp"
#include "record/callers.hpp"
#include "record/event_ring.hpp"
#include "record/loopback/loopback.hpp"
#include "record/walks.hpp"

namespace heddle {

struct RecorderOptions {
  std::bitset<trace::kOpCount> ops = std::bitset<trace::kOpCount>().set();
  bool each_io = false;
};

/// What outlives the workers of a recording: made by their supervisor.
struct RecordingMemory {
  /// Fails where there is no memory or descriptor for it.
  static Result<std::unique_ptr<RecordingMemory>> create();

  loopback::LoopbackMemory loopback;
  std::unique_ptr<EventRing> events;
  Shared<std::atomic<bool>> on;  ///< the program runs, and its accesses are wanted
  std::uint64_t start_ns = 0;    ///< of CLOCK_MONOTONIC
  std::uint64_t now() const;     ///< since start_ns
};

/// The loopback's accesses as events of one run: time, process and executable are added here, in
/// the worker.
class Recorder final : public loopback::AccessLog {
 public:
  Recorder(RecordingMemory& memory, const RecorderOptions& options)
      : memory_(memory), options_(options), callers_(memory.loopback.store) {}

  void start() override { *memory_.on = true; }
  bool on() const noexcept override { return memory_.on->load(std::memory_order_relaxed); }
  bool each_io() const noexcept override { return options_.each_io; }
  void add(trace::Event& event, const loopback::Telling& telling) override;
  unsigned told(std::uint64_t note) const override { return memory_.events->told(note); }

 private:
  RecordingMemory& memory_;
  const RecorderOptions& options_;
  Callers callers_;
  Walks walks_;
};

}  // namespace heddle
