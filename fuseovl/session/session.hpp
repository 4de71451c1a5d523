// SPDX-License-Identifier: MIT
#pragma once

// The one header that includes libfuse.
#ifndef FUSE_USE_VERSION
#define FUSE_USE_VERSION 312
#endif
#include <fuse_lowlevel.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>

#include "base/fd.hpp"

namespace heddle {

/// Requests by kind, and bytes answered. Relaxed atomics, for any number of threads.
class RequestCounters {
 public:
  /// Counts one request by its FUSE opcode.
  void count(std::uint32_t opcode) noexcept {
    by_opcode_[opcode < by_opcode_.size() ? opcode : 0].fetch_add(1, std::memory_order_relaxed);
  }
  void add_bytes_read(std::uint64_t bytes) noexcept {
    bytes_read_.fetch_add(bytes, std::memory_order_relaxed);
  }

  /// Of one opcode; 0: of all opcodes above 63.
  std::uint64_t requests(std::uint32_t opcode) const noexcept {
    return by_opcode_[opcode].load(std::memory_order_relaxed);
  }
  std::uint64_t total() const noexcept {
    std::uint64_t sum = 0;
    for (const auto& counter : by_opcode_) sum += counter.load(std::memory_order_relaxed);
    return sum;
  }
  std::uint64_t bytes_read() const noexcept { return bytes_read_.load(std::memory_order_relaxed); }

 private:
  /// FUSE numbers its operations densely from 1.
  std::array<std::atomic<std::uint64_t>, 64> by_opcode_{};
  std::atomic<std::uint64_t> bytes_read_ = 0;
};

/// Bytes of one WRITE request; a file system's init() must set it. The kernel fails reads of the
/// device into smaller buffers.
inline constexpr unsigned kMaxWrite = 1U << 20;

struct SessionOptions {
  unsigned max_read = 1U << 20;  ///< the mount's own max_read
  unsigned threads = 4;          ///< more than cores: one may wait for a slow origin
};

/// The state of a session that outlives its process, in shared memory. The kernel sends INIT once
/// in a mount's life, so the next process replays the request to libfuse without an answer.
struct SessionMemory {
  RequestCounters counters;
  std::array<char, 512> init{};            ///< the INIT request
  std::atomic<std::size_t> init_size = 0;  ///< 0: none has come yet
  std::atomic<bool> agreed = false;        ///< the kernel has our answer
  std::atomic<std::uint64_t> answers = 0;  ///< written since the mount was made

  /// Whether the kernel can resend what a dead process had read (FUSE_NOTIFY_RESEND, Linux 6.9).
  /// Before INIT there is nothing to resend.
  bool can_be_taken_over() const noexcept;
};

/// One libfuse low-level session over a mounted device (fuseovl/mount/kernel_mount.hpp). libfuse
/// never mounts nor unmounts.
class Session {
 public:
  /// Takes the device. `ops` is copied; `client`, the ops' userdata, and `memory` must outlive the
  /// session, of which a process has one. libfuse's messages go to stderr by base/log. With a
  /// memory that has an INIT request the session continues that of a dead process.
  static Result<Session> create(const fuse_lowlevel_ops& ops, void* client, Fd device,
                                const SessionOptions& options, SessionMemory& memory);
  Session(Session&&) noexcept = default;
  Session& operator=(Session&&) noexcept = default;

  /// Answers requests until the file system is unmounted everywhere or the connection is aborted;
  /// blocks. After a failure (the device is not mounted or cannot be read, no common protocol)
  /// threads may still wait in it, and the process has to end.
  Result<void> serve();

  /// For fuse_lowlevel_notify_*; valid as long as the Session.
  fuse_session* raw() const noexcept { return session_.get(); }

  template <class Client>
  static Client& client(fuse_req_t request) {
    return *static_cast<Client*>(fuse_req_userdata(request));
  }

 private:
  struct Destroy {
    void operator()(fuse_session* session) const { fuse_session_destroy(session); }
  };
  Session(fuse_session* session, const SessionOptions& options, SessionMemory& memory)
      : session_(session), options_(options), memory_(&memory) {}
  Result<void> take_over();
  std::unique_ptr<fuse_session, Destroy> session_;
  SessionOptions options_;
  SessionMemory* memory_;
};

/// Lifetime of names and attributes that never change, in seconds: 31 years, which neither the
/// kernel (fs/fuse/dir.c, time_to_jiffies) nor libfuse clamps.
inline constexpr double kForever = 1e9;

}  // namespace heddle
