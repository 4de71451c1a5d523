// SPDX-License-Identifier: MIT
#include "compat/symbol_set.hpp"

#include <xxhash.h>

namespace heddle::compat {
namespace {

enum class As : XXH64_hash_t { any = 1, exact = 2, bare = 3 };

std::uint64_t hash_of(std::string_view text, As as) {
  const auto hash = XXH3_64bits_withSeed(text.data(), text.size(), static_cast<XXH64_hash_t>(as));
  return hash == 0 ? 1 : hash;
}

std::uint64_t exact_hash(const DynamicSymbol& symbol) {
  std::string text;
  text.reserve(symbol.name.size() + symbol.version.size() + 1);
  text.append(symbol.name).append(1, '\0').append(symbol.version);
  return hash_of(text, As::exact);
}

}  // namespace

SymbolSet::Reference::Reference(const DynamicSymbol& symbol)
    : exact(symbol.version.empty() ? hash_of(symbol.name, As::any) : exact_hash(symbol)),
      bare(hash_of(symbol.name, As::bare)) {}

void SymbolSet::grow() {
  auto old = std::move(slots_);
  slots_.assign(old.empty() ? 1024 : old.size() * 2, 0);
  used_ = 0;
  for (const auto hash : old)
    if (hash != 0) insert(hash);
}

void SymbolSet::insert(std::uint64_t hash) {
  if ((used_ + 1) * 2 > slots_.size()) grow();
  const auto mask = slots_.size() - 1;
  auto at = hash & mask;
  while (slots_[at] != 0 && slots_[at] != hash) at = (at + 1) & mask;
  if (slots_[at] == hash) return;
  slots_[at] = hash;
  ++used_;
}

bool SymbolSet::contains(std::uint64_t hash) const {
  if (slots_.empty()) return false;
  const auto mask = slots_.size() - 1;
  auto at = hash & mask;
  while (slots_[at] != 0 && slots_[at] != hash) at = (at + 1) & mask;
  return slots_[at] == hash;
}

void SymbolSet::add(const ElfFacts& elf) {
  for (const auto& symbol : elf.exported_symbols) {
    insert(hash_of(symbol.name, As::any));
    insert(symbol.version.empty() ? hash_of(symbol.name, As::bare) : exact_hash(symbol));
  }
}

void SymbolSet::add(const SymbolSet& other) {
  for (const auto hash : other.slots_)
    if (hash != 0) insert(hash);
}

}  // namespace heddle::compat
