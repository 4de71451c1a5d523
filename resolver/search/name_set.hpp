// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace heddle {

/// A folder's names: open addressing over 64-bit hashes, names in one arena. A search looks into
/// hundreds of these for each library, so a miss must cost one cache line.
class NameSet {
 public:
  void add(std::string_view name, std::uint64_t hash) {
    if ((count_ + 1) * 2 > slots_.size()) grow();
    place(Slot{hash, static_cast<std::uint32_t>(arena_.size()),
               static_cast<std::uint32_t>(name.size())});
    arena_.append(name);
    ++count_;
  }

  bool contains(std::string_view name, std::uint64_t hash) const {
    if (slots_.empty()) return false;
    for (auto i = hash & mask(); slots_[i].length != 0; i = (i + 1) & mask())
      if (slots_[i].hash == hash &&
          std::string_view(arena_).substr(slots_[i].offset, slots_[i].length) == name)
        return true;
    return false;
  }

 private:
  struct Slot {
    std::uint64_t hash = 0;
    std::uint32_t offset = 0;
    std::uint32_t length = 0;  ///< 0: free
  };
  std::uint64_t mask() const { return slots_.size() - 1; }
  void place(const Slot& slot) {
    auto i = slot.hash & mask();
    while (slots_[i].length != 0) i = (i + 1) & mask();
    slots_[i] = slot;
  }
  void grow() {
    auto old = std::move(slots_);
    slots_.assign(old.empty() ? 8 : old.size() * 2, Slot{});
    for (const auto& slot : old)
      if (slot.length != 0) place(slot);
  }

  std::string arena_;
  std::vector<Slot> slots_;
  std::size_t count_ = 0;
};

}  // namespace heddle
