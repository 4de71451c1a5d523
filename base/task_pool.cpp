// SPDX-License-Identifier: MIT
#include "base/task_pool.hpp"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <system_error>
#include <utility>

namespace heddle {
namespace {

/// Where two calls have taken longer threads are worth their start: 64 of them take 2 ms.
constexpr std::chrono::microseconds kSlow{150};

}  // namespace

TaskPool::~TaskPool() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
    tasks_.clear();
  }
  changed_.notify_all();
  for (auto& thread : threads_) thread.join();
}

void TaskPool::add(std::function<void()> task) {
  const std::lock_guard lock(mutex_);
  if (failure_) return;
  tasks_.push_back(std::move(task));
  if (tasks_.size() > idle_ && threads_.size() < kMostThreads) try {
      threads_.emplace_back([this] { work(); });
    } catch (const std::system_error&) {
      // Out of threads: those that there are, or wait()'s, run it.
    }
  changed_.notify_one();
}

bool TaskPool::run_one(std::unique_lock<std::mutex>& lock) {
  if (tasks_.empty()) return false;
  auto task = std::move(tasks_.back());
  tasks_.pop_back();
  ++running_;
  lock.unlock();
  std::exception_ptr failure;
  try {
    task();
  } catch (...) {
    failure = std::current_exception();
  }
  task = nullptr;  // with what it holds
  lock.lock();
  --running_;
  if (failure) {
    if (!failure_) failure_ = failure;
    tasks_.clear();
  }
  if (running_ == 0 && tasks_.empty()) changed_.notify_all();
  return true;
}

void TaskPool::work() {
  std::unique_lock lock(mutex_);
  while (!stop_) {
    if (run_one(lock)) continue;
    ++idle_;
    changed_.wait(lock);
    --idle_;
  }
}

void TaskPool::wait() {
  std::unique_lock lock(mutex_);
  while (running_ > 0 || !tasks_.empty())
    if (!run_one(lock)) changed_.wait(lock);
  if (failure_) std::rethrow_exception(std::exchange(failure_, nullptr));
}

void for_each_at_once(std::size_t count, const std::function<void(std::size_t)>& body) {
  std::size_t done = 0;
  for (unsigned slow = 0; done < count && slow < 2; ++done) {
    const auto start = std::chrono::steady_clock::now();
    body(done);
    slow += std::chrono::steady_clock::now() - start > kSlow ? 1 : 0;
  }
  if (done == count) return;
  std::atomic<std::size_t> next = done;
  const auto work = [&] {
    for (std::size_t i = next++; i < count; i = next++) body(i);
  };
  TaskPool pool;
  for (std::size_t i = 0; i < std::min(count - done, TaskPool::kMostThreads); ++i) pool.add(work);
  pool.wait();
}

}  // namespace heddle
