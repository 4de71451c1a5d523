// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <cstring>
#include <vector>

#include "resolver/elf/elf_source.hpp"

namespace heddle {

inline std::uint64_t round_up(std::uint64_t value, std::uint64_t to) {
  return (value + to - 1) / to * to;
}

/// The NT_GNU_BUILD_ID note among the notes at `offset`, its bytes as they stand there; empty:
/// none.
template <class Elf>
std::vector<std::uint8_t> find_build_id(const ElfSource<Elf>& elf, std::uint64_t offset,
                                        std::uint64_t size, std::uint64_t align) {
  std::vector<std::uint8_t> notes;
  if (!elf.file.append(notes, offset, std::min<std::uint64_t>(size, 65536))) return {};
  align = align == 8 ? 8 : 4;
  Elf64_Nhdr note;  // the same in both classes
  for (std::uint64_t at = 0; at + sizeof(note) <= notes.size();) {
    std::memcpy(&note, notes.data() + at, sizeof(note));
    const std::uint64_t name_size = elf.number(note.n_namesz);
    const std::uint64_t text_size = elf.number(note.n_descsz);
    const auto text = at + sizeof(note) + round_up(name_size, align);
    if (text + text_size > notes.size()) break;
    if (elf.number(note.n_type) == NT_GNU_BUILD_ID && name_size == 4 && text_size > 0 &&
        text_size <= 64 && std::memcmp(notes.data() + at + sizeof(note), "GNU", 4) == 0) {
      const auto from = notes.begin() + static_cast<std::ptrdiff_t>(at);
      std::vector<std::uint8_t> found(from,
                                      from + static_cast<std::ptrdiff_t>(text + text_size - at));
      found.resize(round_up(found.size(), 4));
      return found;
    }
    at = round_up(text + text_size, align);
  }
  return {};
}

/// The file's build id note. Damaged notes are no reason to refuse a file: ld.so takes it. Go's
/// linker names it in a section only.
template <class Elf>
std::vector<std::uint8_t> find_build_id(const ElfSource<Elf>& elf) {
  for (const auto& s : elf.segments)
    if (elf.number(s.p_type) == PT_NOTE)
      if (auto note = find_build_id(elf, elf.number(s.p_offset), elf.number(s.p_filesz),
                                    elf.number(s.p_align));
          !note.empty())
        return note;
  if (elf.segments.empty()) return {};
  for (const auto& s : elf.sections())
    if (elf.number(s.sh_type) == SHT_NOTE)
      if (auto note = find_build_id(elf, elf.number(s.sh_offset), elf.number(s.sh_size),
                                    elf.number(s.sh_addralign));
          !note.empty())
        return note;
  return {};
}

}  // namespace heddle
