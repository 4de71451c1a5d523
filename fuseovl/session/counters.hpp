// SPDX-License-Identifier: MIT
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <span>

namespace heddle {

/// How many requests of each kind the kernel sent, and how many bytes were handed out. Relaxed
/// atomics: any number of threads may add while others read.
class RequestCounters {
 public:
  struct Kind {
    const char* name;
    std::uint32_t opcode;
  };
  /// The kinds that are told apart, in the order they are shown; all others are `other`.
  static std::span<const Kind> kinds();

  /// Counts one request by its FUSE opcode.
  void count(std::uint32_t opcode) noexcept { add(opcode, 1); }
  void add(std::uint32_t opcode, std::uint64_t requests) noexcept;
  void add_bytes_read(std::uint64_t bytes) noexcept {
    bytes_read_.fetch_add(bytes, std::memory_order_relaxed);
  }

  std::uint64_t of(std::uint32_t opcode) const noexcept;
  std::uint64_t other() const noexcept { return other_.load(std::memory_order_relaxed); }
  std::uint64_t total() const noexcept;
  std::uint64_t bytes_read() const noexcept { return bytes_read_.load(std::memory_order_relaxed); }

 private:
  static constexpr std::size_t kOpcodes = 64;  // FUSE numbers its operations densely from 1
  std::array<std::atomic<std::uint64_t>, kOpcodes> by_opcode_{};
  std::atomic<std::uint64_t> other_ = 0;
  std::atomic<std::uint64_t> bytes_read_ = 0;
};

}  // namespace heddle
