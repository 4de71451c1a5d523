// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <map>
#include <mutex>

#include "record/loopback/block_store.hpp"

namespace heddle::loopback {

/// One st_ino for each (device, inode), unique over all devices and the same for as long as the
/// recorder runs. All files of the loopback have one st_dev, and ld.so takes two libraries of equal
/// (dev, ino) for one (elf/dl-load.c): passing the inode number through made it load the wrong one.
///
/// The root's device keeps its numbers; each further device has its own range of 2^48. A number
/// beyond 2^48 (some network and stacked file systems) gets one of a range for such. What was given
/// out stands in the store: a worker's numbers are the next one's.
class InodeNumbers {
 public:
  InodeNumbers(BlockStore& store, std::uint64_t root_device) : store_(store) {
    store_.each(BlockKind::inode_number, [this](void* block) {
      const auto& given = *static_cast<Given*>(block);
      (given.is_device ? devices_[{given.device, 0}] : foreign_[{given.device, given.inode}]) =
          given.number;
    });
    if (devices_.empty()) give(devices_, {root_device, 0}, 0);
  }

  std::uint64_t of(std::uint64_t device, std::uint64_t inode) {
    const std::lock_guard lock(mutex_);
    const auto index = give(devices_, {device, 0}, devices_.size());
    if (inode < kRange && index < kForeign) return index << kShift | inode;
    return give(foreign_, {device, inode}, (kForeign << kShift) + foreign_.size());
  }

 private:
  using Numbers = std::map<std::pair<std::uint64_t, std::uint64_t>, std::uint64_t>;
  struct Given {
    bool is_device;
    std::uint64_t device, inode, number;
  };
  static constexpr unsigned kShift = 48;
  static constexpr std::uint64_t kRange = 1ULL << kShift;
  static constexpr std::uint64_t kForeign = 0x7fff;

  std::uint64_t give(Numbers& numbers, const Numbers::key_type& key, std::uint64_t next) {
    const auto [at, is_new] = numbers.try_emplace(key, next);
    if (is_new) {
      auto* given = new (store_.make(sizeof(Given)))
          Given{&numbers == &devices_, key.first, key.second, next};
      BlockStore::commit(given, BlockKind::inode_number);
    }
    return at->second;
  }

  BlockStore& store_;
  std::mutex mutex_;
  Numbers devices_, foreign_;  ///< of devices the index: (device, 0)
};

}  // namespace heddle::loopback
