// SPDX-License-Identifier: MIT
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <span>
#include <string_view>
#include <tl/expected.hpp>
#include <vector>

namespace heddle {

/// Room for one answer after another. Not cleared: pages that no answer has written take no memory.
/// Only bytes that the current answer wrote may be sent.
class AnswerBuffer {
 public:
  /// Throws std::bad_alloc.
  std::span<char> at_least(std::size_t size) {
    if (size_ < size) {
      bytes_ = std::make_unique_for_overwrite<char[]>(size);
      size_ = size;
    }
    return {bytes_.get(), size};
  }

 private:
  std::unique_ptr<char[]> bytes_;
  std::size_t size_ = 0;
};

/// Does reads that may block in threads of their own, so that a file system that does not answer
/// blocks only its own reads. Each file system is a `lane` with a few threads, started when needed
/// and ended when idle.
///
/// A read that exceeds the limit is answered with EIO, once, and its lane is silent: other reads of
/// the lane fail at once until one returns, and one read in each limit is tried. In a slow lane,
/// where reads return, the limit of a waiting read counts from the last that did.
class ReaderPool {
 public:
  /// Fills the buffer from its start; result: how many bytes, or an errno.
  using Work = std::function<tl::expected<std::size_t, int>(std::span<char>)>;
  /// Gets the bytes, or an errno. Must not throw.
  using Answer = std::function<void(tl::expected<std::string_view, int>)>;
  struct Read {
    std::size_t lane = 0;
    std::size_t size = 0;   ///< of the buffer, in bytes
    std::string_view path;  ///< for messages; outlives the pool
    Work work;
    Answer answer;
  };
  static constexpr std::size_t kThreadsPerLane = 8;

  /// No thread starts before the first read, so that a process may fork after this. `limit` 0:
  /// none, but a long wait is reported. When `giving_up`, which outlives the pool, is set, all
  /// reads have exceeded the limit.
  ReaderPool(std::size_t lanes, std::chrono::milliseconds limit,
             const std::atomic<bool>& giving_up);
  ReaderPool(const ReaderPool&) = delete;
  ReaderPool& operator=(const ReaderPool&) = delete;
  /// Waits for all reads.
  ~ReaderPool();

  /// Returns at once; where no thread can be started, the read is done here. Throws std::bad_alloc
  /// without effect.
  void submit(Read read);

 private:
  using Clock = std::chrono::steady_clock;
  struct Job {
    Read read;
    Clock::time_point since = {};  ///< when a thread took it
    bool answered = false;         ///< with EIO, by the watch
  };
  struct Lane {
    std::list<Job> waiting;
    std::list<Job> running;
    std::size_t threads = 0;
    std::size_t idle = 0;
    bool silent = false;  ///< a read exceeded the limit, and none has returned since
    Clock::time_point last_done;
    Clock::time_point next_try;  ///< of a silent lane
    std::condition_variable wake;

    bool is_stuck(std::size_t threads_had) const;
  };

  bool ends_waiting() const { return limit_.count() > 0 || giving_up_; }
  bool start_thread(std::function<void()> work);
  void run_lane(Lane& lane);
  void watch();
  void expire(Clock::time_point begin, std::vector<std::function<void()>>& out);

  const std::chrono::milliseconds limit_;
  const std::atomic<bool>& giving_up_;
  std::mutex mutex_;
  std::vector<Lane> lanes_;
  std::size_t jobs_ = 0;  ///< in all lanes
  std::size_t threads_ = 0;
  bool watched_ = false;
  bool ending_ = false;
  std::condition_variable watch_;
  std::condition_variable ended_;
};

}  // namespace heddle
