// SPDX-License-Identifier: MIT
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <utility>
#include <vector>

namespace heddle {

/// How many requests of each kind the kernel sent, and how many bytes were handed out. Relaxed
/// atomics: any number of threads may add while others read.
class RequestCounters {
 public:
  /// Counts one request by its FUSE opcode.
  void count(std::uint32_t opcode) noexcept {
    by_opcode_[opcode < by_opcode_.size() ? opcode : 0].fetch_add(1, std::memory_order_relaxed);
  }
  void add_bytes_read(std::uint64_t bytes) noexcept {
    bytes_read_.fetch_add(bytes, std::memory_order_relaxed);
  }

  std::uint64_t total() const noexcept;
  std::uint64_t bytes_read() const noexcept { return bytes_read_.load(std::memory_order_relaxed); }
  /// By name, in the order they are shown; the last is `other`.
  std::vector<std::pair<const char*, std::uint64_t>> by_kind() const;

 private:
  /// FUSE numbers its operations densely from 1; 0: all that it does not have here.
  std::array<std::atomic<std::uint64_t>, 64> by_opcode_{};
  std::atomic<std::uint64_t> bytes_read_ = 0;
};

}  // namespace heddle
