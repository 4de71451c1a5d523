// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <map>
#include <mutex>

#include "record/loopback/worker_memory.hpp"

namespace heddle::loopback {

/// One st_ino for each (device, inode), unique over all devices and the same for as long as the
/// recorder runs. All files of the loopback have one st_dev, and ld.so takes two libraries of equal
/// (dev, ino) for one (elf/dl-load.c): passing the inode number through made it load the wrong one.
///
/// The root's device keeps its numbers; each further device has its own range of 2^48. A number
/// beyond 2^48 (some network and stacked file systems) gets one of a range for such. What was given
/// out stands in the memory: a worker's numbers are the next one's.
class InodeNumbers {
 public:
  InodeNumbers(WorkerMemory& memory, std::uint64_t root_device)
      : memory_(memory), tables_(memory.tables.root<Tables>(TableMemory::Root::inode_numbers)) {
    if (tables_) return;
    const TableMemory::Change change(memory_.tables);
    tables_ = &memory_.tables.make_root<Tables>(TableMemory::Root::inode_numbers);
    memory_.nodes.each(BlockKind::inode_number, [this](void* block) {
      const auto& given = *static_cast<Given*>(block);
      (given.is_device ? tables_->devices[{given.device, 0}]
                       : tables_->foreign[{given.device, given.inode}]) = given.number;
    });
    if (tables_->devices.empty()) give(tables_->devices, {root_device, 0}, 0);
  }

  std::uint64_t of(std::uint64_t device, std::uint64_t inode) {
    const std::lock_guard lock(mutex_);
    auto& [devices, foreign] = *tables_;
    const auto index = give(devices, {device, 0}, devices.size());
    if (inode < kRange && index < kForeign) return index << kShift | inode;
    return give(foreign, {device, inode}, (kForeign << kShift) + foreign.size());
  }

 private:
  using Key = std::pair<std::uint64_t, std::uint64_t>;
  using Numbers = std::map<Key, std::uint64_t, std::less<>,
                           TableAllocator<std::pair<const Key, std::uint64_t>>>;
  struct Tables {
    explicit Tables(TableMemory& memory) : devices(memory), foreign(memory) {}
    Numbers devices;  ///< (device, 0) to its index
    Numbers foreign;
  };
  struct Given {
    bool is_device;
    std::uint64_t device, inode, number;
  };
  static constexpr unsigned kShift = 48;
  static constexpr std::uint64_t kRange = 1ULL << kShift;
  static constexpr std::uint64_t kForeign = 0x7fff;

  std::uint64_t give(Numbers& numbers, const Numbers::key_type& key, std::uint64_t next) {
    const auto known = numbers.find(key);
    if (known != numbers.end()) return known->second;
    const TableMemory::Change change(memory_.tables);
    auto* given = new (memory_.nodes.make(sizeof(Given)))
        Given{&numbers == &tables_->devices, key.first, key.second, next};
    BlockStore::commit(given, BlockKind::inode_number);
    numbers.emplace(key, next);
    return next;
  }

  WorkerMemory& memory_;
  std::mutex mutex_;
  Tables* tables_;
};

}  // namespace heddle::loopback
