// SPDX-License-Identifier: MIT
#pragma once

#include <atomic>
#include <condition_variable>
#include <list>
#include <mutex>
#include <thread>

#include "base/result.hpp"
#include "record/loopback/loopback.hpp"

namespace heddle::loopback {

/// Serves one FUSE device until the mount has gone.
///
/// One thread at a time, the leader, reads requests and answers quick ones itself: a second reader
/// would only take turns with it, on another core. Before a slow request (disk, large data) the
/// leader hands the reading on; a leader that got stuck in a quick one (a dead NFS server) is
/// replaced after kStuck. Threads are made as needed.
class Server {
 public:
  /// Not the device's owner: the connection lives as long as the supervisor has it.
  Server(Loopback& loopback, const RequestSlots& slots, int device)
      : loopback_(loopback), slots_(slots), device_(device) {}
  /// Where another worker has died: sees to what it had in hand, and has the kernel send the
  /// requests again. Before run(). Fails with EINVAL where the kernel cannot: before Linux 6.9.
  Result<void> take_over();
  /// Blocks until the mount has gone.
  void run();

 private:
  void start_thread();
  void thread_main(std::size_t slot);
  bool become_leader(std::unique_lock<std::mutex>& lock, std::uint64_t& term);
  void lead(std::uint64_t term, std::size_t slot, CallerRights& rights, ReplyBuffer& buffer);
  void handle(Request& request, CallerRights& rights, ReplyBuffer& buffer);

  Loopback& loopback_;
  const RequestSlots& slots_;
  int device_;
  std::mutex mutex_;
  std::condition_variable free_;
  bool has_leader_ = false;
  bool ended_ = false;
  std::size_t waiting_ = 0;
  std::atomic<std::uint64_t> term_{0};   ///< raised when the leader changes
  std::atomic<std::uint64_t> begun_{0};  ///< requests the leader has begun, and
  std::atomic<std::uint64_t> done_{0};   ///< answered
  std::size_t started_ = 0;              ///< threads: the slots that are taken
  std::list<std::thread> threads_;
};

}  // namespace heddle::loopback
