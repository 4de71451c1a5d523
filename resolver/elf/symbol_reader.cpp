// SPDX-License-Identifier: MIT
#include "base/try.hpp"
#include "resolver/elf/loader_facts.hpp"

namespace heddle {

void add_symbol(std::string name, const Elf64_Sym& symbol, unsigned version,
                const SymbolTable& table, ElfFacts& facts) {
  const auto binding = ELF64_ST_BIND(symbol.st_info);
  const bool undefined = symbol.st_shndx == SHN_UNDEF;
  if (name.empty() || binding == STB_LOCAL) return;
  const auto visibility = ELF64_ST_VISIBILITY(symbol.st_other);
  const bool visible = visibility == STV_DEFAULT || visibility == STV_PROTECTED;
  if (!undefined && (!visible || version == VER_NDX_LOCAL)) return;
  const auto found =
      version > VER_NDX_GLOBAL ? table.version_names.find(version) : table.version_names.end();
  auto& list = undefined ? facts.undefined_symbols : facts.exported_symbols;
  list.push_back({std::move(name),
                  found == table.version_names.end() ? std::string() : found->second,
                  binding == STB_WEAK});
}

Result<void> read_symbols(const ElfFile& elf, const SymbolTable& table, ElfFacts& facts) {
  if (table.count == 0) return {};
  const auto where = elf.place(table.address);
  const auto symbols = where ? elf.table<Elf64_Sym>(where->offset, table.count) : std::nullopt;
  if (!symbols) return damaged_elf("its symbol table lies beyond its end");
  for (std::size_t i = 0; i < symbols->size(); ++i) {
    auto symbol = (*symbols)[i];
    if (table.copied.contains(i)) symbol.st_shndx = SHN_UNDEF;
    if (symbol.st_name >= table.names.size()) continue;
    add_symbol(table.names.c_str() + symbol.st_name, symbol, table.version_of(i), table, facts);
  }
  return {};
}

}  // namespace heddle
