// SPDX-License-Identifier: MIT
#include "fuseovl/overlay/stats_slots.hpp"

#include <algorithm>

namespace heddle {

void StatsSlots::put(InodeNumber number, std::string_view text, const timespec& made) {
  // Those without a page have the least number.
  const auto head = std::min_element(
      heads_.begin(), heads_.end(),
      [](const Head& a, const Head& b) { return a.number.load() < b.number.load(); });
  head->number = 0;
  head->size =
      text.copy(rooms_[static_cast<std::size_t>(head - heads_.begin())].bytes.data(), kRoom);
  head->made = made;
  head->number = number;
}

std::optional<StatsText> StatsSlots::find(InodeNumber number) const {
  for (std::size_t i = 0; i < kSlots; ++i)
    if (heads_[i].number == number)
      return StatsText{std::string(rooms_[i].bytes.data(), heads_[i].size), heads_[i].made};
  return std::nullopt;
}

void StatsSlots::drop(InodeNumber number) {
  for (auto& head : heads_)
    if (head.number == number) head.number = 0;
}

}  // namespace heddle
