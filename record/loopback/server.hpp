// SPDX-License-Identifier: MIT
#pragma once

#include <atomic>
#include <condition_variable>
#include <list>
#include <mutex>
#include <thread>

#include "record/loopback/loopback.hpp"

namespace heddle::loopback {

/// Serves one FUSE device until the mount has gone.
///
/// One thread at a time, the leader, reads requests and answers quick ones itself: a second reader
/// would only take turns with it, on another core. Before something slow (disk, large data, a lock
/// that others have) the leader hands the reading on; a leader that got stuck in a quick one (a
/// dead NFS server) is replaced after kStuck. Threads are made as needed.
class Server {
 public:
  /// Not the device's owner.
  Server(Loopback& loopback, int device) : loopback_(loopback), device_(device) {}
  /// Blocks until the mount has gone.
  void run();

 private:
  class Thread;
  static constexpr std::size_t kMostThreads = 192;  // a third of them may wait for locks
  void start_thread();
  bool become_leader(std::unique_lock<std::mutex>& lock, std::uint64_t& term);
  void hand_on(std::uint64_t term);

  Loopback& loopback_;
  int device_;
  std::mutex mutex_;
  std::condition_variable free_;
  bool has_leader_ = false;
  bool ended_ = false;
  std::size_t waiting_ = 0;
  std::atomic<std::uint64_t> term_{0};   ///< raised when the leader changes
  std::atomic<std::uint64_t> begun_{0};  ///< requests the leader has begun, and
  std::atomic<std::uint64_t> done_{0};   ///< answered
  std::size_t started_ = 0;
  std::list<std::thread> threads_;
};

}  // namespace heddle::loopback
