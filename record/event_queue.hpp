// SPDX-License-Identifier: MIT
#pragma once

#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "record/trace/trace_writer.hpp"

namespace heddle {

/// Events on their way to the trace: put in by the serving threads, written by one of its own. It
/// holds a few megabytes at most; who puts in more waits for the writer. Nothing is dropped but
/// what a failed file cannot take.
class EventQueue {
 public:
  explicit EventQueue(trace::TraceWriter writer);
  /// Without finish(): what came is written, the trace has no footer.
  ~EventQueue();

  /// Copies the event but for `exe`, whose bytes must outlive the queue. Any thread.
  void add(const trace::Event& event);
  /// Writes all that came and the footer. Failure: something was lost. Later events are dropped.
  Result<void> finish(bool complete, std::optional<int> exit_status, std::uint64_t end_ns);
  std::uint64_t written() const noexcept { return writer_.counts().events; }

 private:
  struct Batch {
    Batch();
    bool fits(std::size_t bytes) const;
    std::string_view keep(std::string_view bytes);
    std::vector<trace::Event> events;
    std::unique_ptr<char[]> bytes;
    std::size_t used = 0;
  };
  void writer_main();
  void write_batch(Batch& batch);
  void stop();

  trace::TraceWriter writer_;
  std::mutex mutex_;
  std::condition_variable work_, room_;
  std::deque<std::unique_ptr<Batch>> full_;
  std::vector<std::unique_ptr<Batch>> spare_;
  std::unique_ptr<Batch> current_;
  bool idle_ = false;  ///< the writer sleeps until it is woken
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace heddle
