// SPDX-License-Identifier: MIT
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string_view>
#include <thread>
#include <vector>

#include "fuseovl/object_files.hpp"
#include "fuseovl/tree.hpp"

struct fuse_session;

namespace heddle {

/// Hands file contents to the kernel's page cache in the background, before anybody asks, smallest
/// files first until the budget is spent. It begins when the mount is warm: the kernel takes pages
/// only for inodes it knows. FUSE_NOTIFY_STORE and not reading through the mount: no file of the
/// mount is open meanwhile, so it can be unmounted at any moment, from any namespace.
class Prefetch {
 public:
  /// `tree`, `files` and `index` must outlive stop(). The budget also bows to a quarter of the
  /// node's available memory.
  Prefetch(const Tree& tree, ObjectFiles& files, std::string_view index, std::uint64_t budget);
  ~Prefetch() { stop(); }

  void attach(fuse_session* session);
  /// Starts the work, once; called by an op, returns at once.
  void begin();
  /// Waits for the threads, which look for it between two pieces.
  void stop();
  /// Says that the kernel itself reads this object now: it is left for the end, since a store waits
  /// for pages that a READ in flight has locked.
  void reading(ObjectId object) noexcept {
    being_read_[object].store(true, std::memory_order_relaxed);
  }

  /// "off", "waiting", "running" or "done".
  std::string_view state() const noexcept;
  std::uint64_t budget() const noexcept { return budget_; }
  std::uint64_t files_done() const noexcept { return files_done_.load(std::memory_order_relaxed); }
  std::uint64_t bytes_done() const noexcept { return bytes_done_.load(std::memory_order_relaxed); }

 private:
  enum class State : std::uint8_t { off, waiting, running, done };
  void run(std::stop_token stop);
  void store_all(std::stop_token stop, std::atomic<std::size_t>& next, bool also_being_read);
  bool store_object(std::stop_token stop, ObjectId object);
  void choose();

  const Tree& tree_;
  ObjectFiles& files_;
  std::string_view index_;
  std::uint64_t budget_ = 0;
  fuse_session* session_ = nullptr;
  std::vector<ObjectId> chosen_;
  std::unique_ptr<std::atomic<bool>[]> being_read_;
  std::unique_ptr<std::atomic<bool>[]> stored_;
  std::atomic<State> state_ = State::off;
  std::atomic<std::uint64_t> files_done_ = 0;
  std::atomic<std::uint64_t> bytes_done_ = 0;
  std::mutex mutex_;
  std::condition_variable_any wake_;
  bool wanted_ = false;
  std::jthread worker_;
};

}  // namespace heddle
