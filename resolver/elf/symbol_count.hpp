// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>
#include <vector>

#include "resolver/elf/elf_source.hpp"

namespace heddle {

/// Addresses out of PT_DYNAMIC, as far as it has them.
struct TableAddresses {
  std::optional<std::uint64_t> strtab, symtab, hash, gnu_hash, versym, verneed, verdef;
};

/// nullopt: the table says nothing of it, as when it has no defined symbol.
template <class Elf>
std::optional<std::uint64_t> count_by_gnu_hash(const ElfSource<Elf>& elf, std::uint64_t address) {
  const auto where = elf.place(address);
  if (!where) return std::nullopt;
  const auto buckets = elf.word(where->offset);
  const auto base = elf.word(where->offset + 4);
  const auto words = elf.word(where->offset + 8);
  if (!buckets || !base || !words) return std::nullopt;
  const std::uint64_t at =
      where->offset + 16 + std::uint64_t{*words} * sizeof(typename Elf::bloom_word);
  std::vector<std::uint32_t> first(std::min<std::uint64_t>(*buckets, elf.file.size() / 4));
  if (!elf.file.read(at, first.data(), first.size() * 4)) return std::nullopt;
  std::uint32_t last = 0;
  for (const auto bucket : first) last = std::max(last, elf.number(bucket));
  if (last == 0 || last < *base) return std::nullopt;
  const std::uint64_t chains = at + first.size() * 4;
  // The last bucket's chain ends at an odd word; a chain of a million is none.
  for (std::uint64_t i = last; i - last < 1'000'000; ++i) {
    const auto chain = elf.word(chains + (i - *base) * 4);
    if (!chain) return std::nullopt;
    if (*chain & 1) return i + 1;
  }
  return std::nullopt;
}

/// How many symbols stand in DT_SYMTAB, at `table`: PT_DYNAMIC does not say. Exact by DT_HASH;
/// DT_GNU_HASH knows it when any symbol is defined; else a section header; else the table ends
/// where the next one starts. Never more than fit into the segment.
template <class Elf>
std::uint64_t count_symbols(const ElfSource<Elf>& elf, const TableAddresses& at,
                            const typename ElfSource<Elf>::Place& table) {
  constexpr auto size = sizeof(typename Elf::Sym);
  const auto most = std::min(table.left, kMaxTable) / size;
  if (at.hash)
    if (const auto where = elf.place(*at.hash))
      if (const auto chains = elf.word(where->offset + 4))
        return std::min<std::uint64_t>(*chains, most);
  if (at.gnu_hash)
    if (const auto n = count_by_gnu_hash(elf, *at.gnu_hash)) return std::min(*n, most);
  for (const auto& section : elf.sections())
    if (elf.number(section.sh_type) == SHT_DYNSYM && elf.number(section.sh_addr) == *at.symtab)
      return std::min<std::uint64_t>(elf.number(section.sh_size) / size, most);
  auto count = most;
  for (const auto& other : {at.strtab, at.hash, at.gnu_hash, at.versym, at.verneed, at.verdef})
    if (other && *other > *at.symtab) count = std::min(count, (*other - *at.symtab) / size);
  return count;
}

}  // namespace heddle
