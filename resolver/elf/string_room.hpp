// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "resolver/elf/elf_facts.hpp"
#include "resolver/elf/elf_source.hpp"

namespace heddle {

// A linker that keeps code apart (binutils since 2.31) starts each segment on a page of its own,
// and the rest of the page before it is zeros that are mapped and that nobody uses. ld.so adds
// d_val to the string table's address and asks no more (elf/dl-load.c, decompose_rpath's callers),
// so a search path may stand there that is longer than the one the linker made.

/// Mappings are of whole pages, whose size is a multiple of this one.
inline constexpr std::uint64_t kSmallestPage = 4096;

/// Whether the bytes [offset, offset+size) belong to a segment, a section or a header table.
template <class Elf>
bool is_used(const ElfSource<Elf>& elf, const std::vector<typename Elf::Shdr>& sections,
             std::uint64_t offset, std::uint64_t size) {
  const auto meets = [&](std::uint64_t start, std::uint64_t length) {
    return length > 0 && start < offset + size && (offset < start || offset - start < length);
  };
  const auto& number = elf.number;
  const auto& header = elf.header;
  for (const auto& s : elf.segments)
    if (meets(number(s.p_offset), number(s.p_filesz))) return true;
  for (const auto& s : sections)
    if (number(s.sh_type) != SHT_NOBITS && meets(number(s.sh_offset), number(s.sh_size)))
      return true;
  return meets(number(header.e_phoff), elf.segments.size() * sizeof(typename Elf::Phdr)) ||
         meets(number(header.e_shoff),
               std::uint64_t{number(header.e_shnum)} * sizeof(typename Elf::Shdr));
}

/// The largest room behind a segment of `elf` whose memory is all of the file's; size 0: none. It
/// may be read and is written to by nobody, and is never the last segment: of that the kernel
/// clears the rest of the page (fs/binfmt_elf.c, padzero).
template <class Elf>
StringRoom find_string_room(const ElfSource<Elf>& elf, std::uint64_t string_table) {
  StringRoom best;
  const auto& number = elf.number;
  const auto sections = elf.sections();
  std::uint64_t last = 0;
  for (const auto& s : elf.segments)
    if (number(s.p_type) == PT_LOAD) last = std::max<std::uint64_t>(last, number(s.p_vaddr));
  for (const auto& s : elf.segments) {
    const std::uint64_t size = number(s.p_filesz);
    if (number(s.p_type) != PT_LOAD || (number(s.p_flags) & (PF_R | PF_W)) != PF_R || size == 0 ||
        size != number(s.p_memsz) || number(s.p_vaddr) == last)
      continue;
    const std::uint64_t address = number(s.p_vaddr) + size;
    const std::uint64_t offset = number(s.p_offset) + size;
    const std::uint64_t room = (kSmallestPage - address % kSmallestPage) % kSmallestPage;
    // Behind the string table, so that d_val is no huge number.
    if (room <= best.size || address < string_table || offset % kSmallestPage == 0 ||
        offset % kSmallestPage != address % kSmallestPage || is_used(elf, sections, offset, room))
      continue;
    std::vector<std::uint8_t> bytes;
    if (!elf.file.append(bytes, offset, room) ||
        std::any_of(bytes.begin(), bytes.end(), [](std::uint8_t byte) { return byte != 0; }))
      continue;
    best = {offset, room, address - string_table};
  }
  return best;
}

}  // namespace heddle
