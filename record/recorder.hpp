// SPDX-License-Identifier: MIT
#pragma once

#include <atomic>
#include <bitset>
#include <cstdint>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "record/loopback/loopback.hpp"
#include "record/trace/trace_writer.hpp"

namespace heddle {

/// The process of a thread.
struct Caller {
  std::int32_t pid = 0;
  std::string_view exe;  ///< lives as long as the Callers
};

/// The processes and executables of threads, read from /proc (FUSE carries thread ids only) and
/// cached until the thread pauses or executes a program. Thread-safe.
class Callers {
 public:
  /// `now_ns` is the event's time.
  Caller of(std::int32_t tid, std::uint64_t now_ns);
  /// `tid` has opened a program for execve(2), so its executable is about to change.
  void executes(std::int32_t tid);

 private:
  struct Known {
    Caller caller;
    std::uint64_t seen_ns = 0;
    unsigned recheck = 0;  ///< requests that read the executable again
  };
  std::string_view intern(std::string_view text);
  std::string_view read_exe(std::int32_t tid);
  std::mutex mutex_;
  std::unordered_map<std::int32_t, Known> known_;
  std::unordered_set<std::string> texts_;
};

/// Finds the path that a program passed to the kernel. FUSE sees each component of the walk, and
/// after a symlink those of its target; the links that a thread read lead back to the first name.
/// Thread-safe.
class Walks {
 public:
  /// To be called with each event, in order. True: the event's path is the resolution of `asked`.
  bool asked_path(const trace::Event& event, std::string& asked);

  /// `target` of the link at `link`, absolute, without `.` and `..`.
  static std::string destination(std::string_view link, std::string_view target);

 private:
  struct Step {
    std::string link;
    std::string target;
  };
  struct Walk {
    std::vector<Step> steps;
    std::string end;  ///< where it led; empty: not finished
  };
  std::mutex mutex_;
  std::unordered_map<std::int32_t, Walk> walks_;
};

struct RecorderOptions {
  std::bitset<trace::kOpCount> ops = std::bitset<trace::kOpCount>().set();
  bool each_io = false;
};

/// Writes the loopback's accesses as the trace of one run, with time, process and executable.
/// Blocks while the trace cannot be written (a full pipe), so no event is dropped.
class Recorder final : public loopback::AccessLog {
 public:
  Recorder(trace::TraceWriter writer, const RecorderOptions& options);

  void start() override { on_ = true; }
  bool on() const noexcept override { return on_.load(std::memory_order_relaxed); }
  bool each_io() const noexcept override { return options_.each_io; }
  void add(trace::Event& event) override;
  void add_collision(const std::string& path) override;

  /// Writes all events to the file.
  void flush();
  /// Ends the trace and the recording. Failure: the trace is incomplete.
  Result<void> finish(bool complete, std::optional<int> exit_status);
  const trace::RunFooter& counts() const { return writer_.counts(); }
  /// Paths of add_collision(), the first ten.
  std::vector<std::string> collisions();

 private:
  std::uint64_t now() const;
  const RecorderOptions& options_;
  const std::uint64_t start_ns_;  ///< of CLOCK_MONOTONIC
  std::atomic<bool> on_ = false;
  Callers callers_;
  Walks walks_;
  std::mutex mutex_;
  trace::TraceWriter writer_;
  std::vector<std::string> collisions_;
  bool finished_ = false;
};

}  // namespace heddle
