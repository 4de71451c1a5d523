// SPDX-License-Identifier: MIT
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <new>

#include "fuseovl/session/shared.hpp"
#include "record/loopback/block_store.hpp"

namespace heddle::loopback {

/// Containers that one worker leaves to the next as they stand: in memory that both have at one
/// address, and both are the same program. Only a worker killed in the midst of a Change leaves
/// them broken; the next sees that, and makes them anew from the blocks that they find.
class TableMemory {
 public:
  enum class Root : std::uint8_t { nodes, inode_numbers };

  /// While one lives, something here is being changed. Any thread.
  class Change {
   public:
    explicit Change(const TableMemory& memory) : running_(memory.head_->changes) {
      running_.fetch_add(1, std::memory_order_acq_rel);
    }
    Change(const Change&) = delete;
    Change& operator=(const Change&) = delete;
    ~Change() { running_.fetch_sub(1, std::memory_order_acq_rel); }

   private:
    std::atomic<unsigned>& running_;
  };

  /// In a new worker: whether none before it was killed while it changed something.
  bool is_whole() const { return head_->changes == 0; }
  /// In the supervisor: the next worker is to take it for broken.
  void distrust() { head_->changes = 1; }
  /// In a new worker: there is nothing, any more.
  void clear();

  /// What make_root() made; none: nullptr.
  template <class T>
  T* root(Root which) const {
    return static_cast<T*>(head_->roots.at(static_cast<std::size_t>(which)));
  }
  /// Makes a T, which stays until clear(); its allocators are made of the one argument, *this.
  template <class T>
  T& make_root(Root which) {
    T* made = new (blocks_.make(sizeof(T))) T(*this);
    head_->roots.at(static_cast<std::size_t>(which)) = made;
    return *made;
  }
  void* make(std::size_t bytes) { return blocks_.make(bytes); }
  void give_up(void* block) { blocks_.give_up(block); }
  /// Bytes ever needed at once, about.
  std::size_t used() const { return blocks_.used(); }

 private:
  struct Head {
    std::atomic<unsigned> changes;
    std::array<void*, 2> roots;
  };
  BlockStore blocks_;
  Shared<Head> head_;
};

/// For standard containers in a TableMemory.
template <class T>
class TableAllocator {
 public:
  using value_type = T;
  TableAllocator(TableMemory& memory) noexcept : memory_(&memory) {}  // NOLINT: as allocators are
  template <class U>
  TableAllocator(const TableAllocator<U>& other) noexcept  // NOLINT: the same
      : memory_(&other.memory()) {}

  T* allocate(std::size_t count) { return static_cast<T*>(memory_->make(count * sizeof(T))); }
  void deallocate(T* values, std::size_t) noexcept { memory_->give_up(values); }
  TableMemory& memory() const noexcept { return *memory_; }
  bool operator==(const TableAllocator&) const = default;

 private:
  static_assert(alignof(T) <= 8);
  TableMemory* memory_;
};

/// What a worker leaves to those that follow it; made before the first.
struct WorkerMemory {
  BlockStore store{std::size_t{1} << 30U};  ///< handles and what else there is little of
  BlockStore nodes;                         ///< the nodes, their names, numbers given out
  TableMemory tables;                       ///< what finds those in `nodes`

  /// In a new worker, before anything is made. What takes the longer the more files are known is
  /// done only where the one before was killed while it changed a table.
  void recover();
};

}  // namespace heddle::loopback
