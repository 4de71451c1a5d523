// SPDX-License-Identifier: MIT
#include "resolver/policy/symbol_reader.hpp"

namespace heddle {

const ElfFacts* SymbolReader::of(const std::string& path) {
  const auto [slot, is_new] = facts_.try_emplace(path);
  if (is_new)
    if (auto file = world_.facts_with_symbols(path)) slot->second = std::move(file->elf);
  return slot->second ? &*slot->second : nullptr;
}

const std::set<std::string>& SymbolReader::exports(const std::string& path) {
  const auto [slot, is_new] = exports_.try_emplace(path);
  if (is_new)
    if (const auto* facts = of(path))
      for (const auto& symbol : facts->exported_symbols) slot->second.insert(symbol.name);
  return slot->second;
}

}  // namespace heddle
