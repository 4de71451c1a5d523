// SPDX-License-Identifier: MIT
#include "record/loopback/block_store.hpp"

#include <algorithm>
#include <bit>
#include <cstring>
#include <new>

namespace heddle::loopback {
namespace {

constexpr std::size_t kLeast = std::size_t{64} << 20U;
constexpr std::uint32_t kExactUnits = 32;  // up to here each size has its list, then powers of two

}  // namespace

BlockStore::BlockStore(std::size_t most) : pages_(most, std::min(most, kLeast)) {
  static_assert(sizeof(Header) == 8 && sizeof(Head) <= kFirst);
}

std::uint32_t BlockStore::rounded(std::uint32_t units) {
  return units <= kExactUnits ? units : std::bit_ceil(units);
}

std::size_t BlockStore::list_of(std::uint32_t units) {
  return units <= kExactUnits ? units
                              : kExactUnits + static_cast<std::size_t>(std::bit_width(units)) - 5;
}

void* BlockStore::make(std::size_t bytes) {
  const auto units =
      rounded(static_cast<std::uint32_t>((sizeof(Header) + bytes + kUnit - 1) / kUnit));
  const std::lock_guard lock(mutex_);
  if (Free*& first = head().lists.at(list_of(units)); first != nullptr) {
    Free* taken = first;
    first = taken->next;
    return taken;
  }
  const std::size_t at = head().used;
  if (kFirst + at + units * kUnit > pages_.size()) throw std::bad_alloc();
  Header& header = header_at(at);
  header.units = units;  // before the store that makes it one of the blocks
  header.kind.store(BlockKind::free, std::memory_order_release);
  head().used = at + units * kUnit;
  return &header + 1;
}

void BlockStore::commit(void* block, BlockKind kind) {
  header_of(block).kind.store(kind, std::memory_order_release);
}

void BlockStore::put_in_list(void* block) {
  Free*& first = head().lists.at(list_of(header_of(block).units));
  first = new (block) Free{first};
}

void BlockStore::give_up(void* block) {
  const std::lock_guard lock(mutex_);
  header_of(block).kind.store(BlockKind::free, std::memory_order_release);
  put_in_list(block);
}

void BlockStore::recover() {
  const std::lock_guard lock(mutex_);
  head().lists.fill(nullptr);
  each(BlockKind::free, [this](void* block) { put_in_list(block); });
}

void BlockStore::clear() {
  const std::lock_guard lock(mutex_);
  head().lists.fill(nullptr);
  head().used = 0;
}

const char* keep_text(BlockStore& store, std::string_view text) {
  auto* kept = static_cast<char*>(store.make(text.size() + 1));
  std::memcpy(kept, text.data(), text.size());
  kept[text.size()] = '\0';
  BlockStore::commit(kept, BlockKind::text);
  return kept;
}

}  // namespace heddle::loopback
