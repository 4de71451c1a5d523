// SPDX-License-Identifier: MIT
#include "record/diff/token_table.hpp"

#include <xxhash.h>

#include "base/escape.hpp"

namespace heddle::diff {

TokenTable::TokenTable() : slots_(1024) {}

Token TokenTable::intern(const TokenText& text) {
  const std::uint64_t seed =
      static_cast<std::uint64_t>(text.op) << 32 | static_cast<std::uint32_t>(text.error);
  const std::uint64_t hash = XXH3_64bits_withSeed(text.path.data(), text.path.size(), seed);
  const std::size_t mask = slots_.size() - 1;
  std::size_t slot = hash & mask;
  for (; slots_[slot] != 0; slot = (slot + 1) & mask) {
    const Entry& e = entries_[slots_[slot] - 1];
    if (e.hash == hash && e.op == text.op && e.error == text.error &&
        std::string_view(paths_).substr(e.path_at, e.path_size) == text.path)
      return slots_[slot] - 1;
  }
  entries_.push_back({hash, paths_.size(), static_cast<std::uint32_t>(text.path.size()),
                      static_cast<std::int16_t>(text.error), text.op});
  paths_ += text.path;
  slots_[slot] = static_cast<std::uint32_t>(entries_.size());
  if (entries_.size() * 2 > slots_.size()) rehash(slots_.size() * 2);
  return static_cast<Token>(entries_.size() - 1);
}

void TokenTable::rehash(std::size_t slots) {
  slots_.assign(slots, 0);
  for (std::size_t i = 0; i < entries_.size(); ++i) {
    std::size_t slot = entries_[i].hash & (slots - 1);
    while (slots_[slot] != 0) slot = (slot + 1) & (slots - 1);
    slots_[slot] = static_cast<std::uint32_t>(i + 1);
  }
}

TokenText TokenTable::text(Token token) const {
  const Entry& e = entries_[token];
  return {e.op, e.error, std::string_view(paths_).substr(e.path_at, e.path_size)};
}

std::string token_label(const TokenText& text) {
  std::string label(trace::op_name(text.op));
  if (text.error != 0) {
    std::array<char, 16> scratch;
    label += ' ';
    label += trace::result_name(text.error, scratch);
  }
  label += ' ';
  label += escape_for_terminal(text.path);
  return label;
}

}  // namespace heddle::diff
