// SPDX-License-Identifier: MIT
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <mutex>
#include <string_view>

#include "record/loopback/shared_pages.hpp"

namespace heddle::loopback {

enum class BlockKind : std::uint32_t { free, node, name, pin, handle, inode_number, text };
enum class Counter : std::uint8_t { node, handle, tag };

/// What the loopback must not forget when its worker dies: blocks of memory at fixed addresses that
/// one worker leaves to the next. A block is made, filled, and there from the one store that
/// commits it to the one that gives it up; what was being made when a worker was killed is free
/// again once a recover() has gone through all of them. Made by the supervisor before the first
/// worker. All members lock; any thread of one process at a time.
class BlockStore {
 public:
  /// Room for `most` bytes, of address space, not memory: by default for some 50 million files.
  explicit BlockStore(std::size_t most = std::size_t{16} << 30U);

  /// At least `bytes`, aligned to 8, their content undefined. Throws std::bad_alloc.
  void* make(std::size_t bytes);
  static void commit(void* block, BlockKind kind);
  void give_up(void* block);

  /// Calls visit(void*) for each block of the kind, oldest address first. It may give up blocks.
  template <class Visit>
  void each(BlockKind kind, Visit visit) const {
    for (std::size_t at = 0; at < head().used; at += header_at(at).bytes())
      if (header_at(at).kind.load(std::memory_order_acquire) == kind) visit(&header_at(at) + 1);
  }
  /// 1, 2, 3...: never the same twice.
  std::uint64_t next(Counter counter) {
    return ++head().counters.at(static_cast<std::size_t>(counter));
  }
  /// Bytes of all blocks that have ever been needed at once, about.
  std::size_t used() const { return head().used; }
  /// In a new worker, before anything is made: finds what is free. Without it, all is free that
  /// was, unless a worker was killed within one of the members.
  void recover();
  /// In a new worker: gives up all that there is.
  void clear();

 private:
  struct Header {
    std::atomic<BlockKind> kind;
    std::uint32_t units;
    std::size_t bytes() const { return std::size_t{units} * kUnit; }
  };
  struct Free {
    Free* next;
  };
  struct Head {
    std::atomic<std::size_t> used;  ///< the blocks stand side by side up to here
    std::array<std::atomic<std::uint64_t>, 3> counters;
    std::array<Free*, 64> lists;  ///< free blocks by their size
  };
  static constexpr std::size_t kUnit = 16;
  static constexpr std::size_t kFirst = 1024;  ///< of the blocks in pages_
  static std::uint32_t rounded(std::uint32_t units);
  static std::size_t list_of(std::uint32_t units);
  static Header& header_of(void* block) { return static_cast<Header*>(block)[-1]; }
  Head& head() const { return *reinterpret_cast<Head*>(pages_.data()); }
  Header& header_at(std::size_t at) const {
    return *reinterpret_cast<Header*>(pages_.data() + kFirst + at);
  }
  void put_in_list(void* block);

  SharedPages pages_;
  std::mutex mutex_;  ///< each process its own
};

/// A copy of `text` that stays, ended by a NUL.
const char* keep_text(BlockStore& store, std::string_view text);

}  // namespace heddle::loopback
