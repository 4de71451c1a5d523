// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <vector>

#include "resolver/elf/elf_source.hpp"

namespace heddle {

/// DT_VERNEED or DT_VERDEF as they stand in the file, and the number of their first-level entries.
struct VersionTable {
  std::vector<std::uint8_t> bytes;
  std::uint32_t entries = 0;
};

/// What a chain's walk needs to know of one entry.
struct ChainHead {
  bool good = false;
  std::uint64_t first_tail = 0;
  std::uint32_t tails = 0;
  std::uint64_t next = 0;
};
struct ChainTail {
  bool good = false;
  std::uint64_t next = 0;
};

// The tables are the same in both ELF classes. `names` tells whether an offset is in DT_STRTAB.
template <class Names>
struct NeedChain {
  using Head = Elf64_Verneed;
  using Tail = Elf64_Vernaux;
  ChainHead head(const Head& h) const {
    return {number(h.vn_version) == VER_NEED_CURRENT && names(number(h.vn_file)), number(h.vn_aux),
            number(h.vn_cnt), number(h.vn_next)};
  }
  ChainTail tail(const Tail& t) const { return {names(number(t.vna_name)), number(t.vna_next)}; }
  ElfNumber number;
  Names names;
};
template <class Names>
struct DefinitionChain {
  using Head = Elf64_Verdef;
  using Tail = Elf64_Verdaux;
  ChainHead head(const Head& h) const {
    return {number(h.vd_version) == VER_DEF_CURRENT, number(h.vd_aux), number(h.vd_cnt),
            number(h.vd_next)};
  }
  ChainTail tail(const Tail& t) const { return {names(number(t.vda_name)), number(t.vda_next)}; }
  ElfNumber number;
  Names names;
};

/// Reads a version table: a chain of heads, each with a chain of tails. Every link goes forward, so
/// a walk ends; the total is limited because the chains of different heads may overlap.
template <class Elf, class Chain>
Result<VersionTable> read_version_table(const ElfSource<Elf>& elf, std::uint64_t address,
                                        const Chain& chain) {
  constexpr std::uint64_t most = 1'000'000;
  VersionTable table;
  const auto where = elf.place(address);
  if (!where) return damaged("a version table is in no segment");
  std::uint64_t end = 0;
  std::uint64_t total = 0;
  const auto read = [&](std::uint64_t at, auto& entry) {
    if (at > where->left || sizeof(entry) > where->left - at) return false;
    end = std::max(end, at + sizeof(entry));
    return elf.file.read(where->offset + at, &entry, sizeof(entry));
  };
  for (std::uint64_t at = 0;;) {
    typename Chain::Head raw_head;
    if (!read(at, raw_head)) return damaged("a version table leaves its segment");
    const auto head = chain.head(raw_head);
    if (!head.good) return damaged("a version table has an entry of an unknown kind");
    std::uint64_t tail_at = at + head.first_tail;
    for (std::uint32_t i = 0; i < head.tails; ++i) {
      typename Chain::Tail raw_tail;
      if (!read(tail_at, raw_tail)) return damaged("a version table leaves its segment");
      const auto tail = chain.tail(raw_tail);
      if (!tail.good) return damaged("a version's name lies beyond its string table");
      if (++total > most) return damaged("a version table does not end");
      if (tail.next == 0) break;
      tail_at += tail.next;
    }
    ++table.entries;
    if (head.next == 0) break;
    if (++total > most) return damaged("a version table does not end");
    at += head.next;
  }
  if (end > kMaxTable || !elf.file.append(table.bytes, where->offset, end))
    return damaged("a version table lies beyond its end");
  return table;
}

}  // namespace heddle
