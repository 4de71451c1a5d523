// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <map>
#include <mutex>

namespace heddle::loopback {

/// One st_ino for each (device, inode), unique over all devices and the same for as long as the
/// recorder runs. All files of the loopback have one st_dev, and ld.so takes two libraries of equal
/// (dev, ino) for one (elf/dl-load.c): passing the inode number through made it load the wrong one.
///
/// The root's device keeps its numbers; each further device has its own range of 2^48. A number
/// beyond 2^48 (some network and stacked file systems) gets one of a range for such.
class InodeNumbers {
 public:
  explicit InodeNumbers(std::uint64_t root_device) { devices_[root_device] = 0; }

  std::uint64_t of(std::uint64_t device, std::uint64_t inode) {
    const std::lock_guard lock(mutex_);
    const auto index = devices_.try_emplace(device, devices_.size()).first->second;
    if (inode < kRange && index < kForeign) return index << kShift | inode;
    const auto next = (kForeign << kShift) + foreign_.size();
    return foreign_.try_emplace({device, inode}, next).first->second;
  }

 private:
  static constexpr unsigned kShift = 48;
  static constexpr std::uint64_t kRange = 1ULL << kShift;
  static constexpr std::uint64_t kForeign = 0x7fff;
  std::mutex mutex_;
  std::map<std::uint64_t, std::uint64_t> devices_;
  std::map<std::pair<std::uint64_t, std::uint64_t>, std::uint64_t> foreign_;
};

}  // namespace heddle::loopback
