// SPDX-License-Identifier: MIT
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <ctime>
#include <optional>
#include <string>
#include <string_view>

#include "fuseovl/overlay/tree.hpp"

namespace heddle {

/// The page of `.heddle/stats` as one reader found it.
struct StatsText {
  std::string text;
  timespec made{};
};

/// Such pages, each under a number that is given once, in memory that outlives whoever wrote them
/// (ServingState). A writer that is killed leaves each page whole or not there. Not thread-safe:
/// its one process at a time has a lock of its own, which nobody can die with.
class StatsSlots {
 public:
  /// Above all numbers that a Tree gives.
  static constexpr InodeNumber kFirst = InodeNumber{1} << 62;
  /// How much text has room; a usual page has 2 KiB, and 80 bytes and a path for each drifted file.
  static constexpr std::size_t kRoom = 16384;
  static constexpr std::size_t kSlots = 64;

  /// Not `= default`: `StatsSlots{}` would write zeros over all rooms.
  StatsSlots() {}  // NOLINT(modernize-use-equals-default)

  InodeNumber next_number() { return next_++; }
  /// `text`: kRoom bytes at most. When all have a page, the oldest one goes.
  void put(InodeNumber number, std::string_view text, const timespec& made);
  std::optional<StatsText> find(InodeNumber number) const;
  void drop(InodeNumber number);

 private:
  struct Head {
    std::atomic<InodeNumber> number = 0;  ///< 0: no page
    std::size_t size = 0;
    timespec made{};
  };
  /// Fresh memory stays untouched, page by page, until it is used.
  struct Room {
    Room() {}  // NOLINT(modernize-use-equals-default): as above
    std::array<char, kRoom> bytes;
  };

  std::array<Head, kSlots> heads_;
  std::array<Room, kSlots> rooms_;
  std::atomic<InodeNumber> next_ = kFirst;
};

}  // namespace heddle
