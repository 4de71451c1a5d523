// SPDX-License-Identifier: MIT
#pragma once

// Threads that wait for file systems: a slow one answers many requests as fast as one.

#include <condition_variable>
#include <cstddef>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace heddle {

class TaskPool {
 public:
  /// Threads start when there is work for them, at most so many.
  static constexpr std::size_t kMostThreads = 64;

  TaskPool() = default;
  TaskPool(const TaskPool&) = delete;
  TaskPool& operator=(const TaskPool&) = delete;
  /// Waits for the running tasks and drops the others.
  ~TaskPool();

  /// Tasks may add tasks. The last one added runs first, which bounds what a walk holds open.
  void add(std::function<void()> task);
  /// Until no task is left; this thread works too, so that it needs no other. Throws the first
  /// exception of a task, after which no further task is started. Not from a task.
  void wait();

 private:
  void work();
  bool run_one(std::unique_lock<std::mutex>& lock);

  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::function<void()>> tasks_;
  std::vector<std::thread> threads_;
  std::size_t running_ = 0;
  std::size_t idle_ = 0;
  bool stop_ = false;
  std::exception_ptr failure_;
};

/// Calls `body(i)` for each i < `count`, in any order: many at a time where calls take long.
void for_each_at_once(std::size_t count, const std::function<void(std::size_t)>& body);

}  // namespace heddle
