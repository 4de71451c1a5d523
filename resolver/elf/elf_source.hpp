// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "base/result.hpp"
#include "resolver/elf/elf_layout.hpp"
#include "resolver/elf/file_bytes.hpp"

namespace heddle {

/// No table of a sound file is larger. Bytes.
inline constexpr std::uint64_t kMaxTable = std::uint64_t{1} << 30;

inline tl::unexpected<Error> damaged(std::string_view reason) {
  return fail(Error::with_code(EBADMSG, "", "damaged ELF file", reason));
}

/// The headers of an ELF file of one class, and its bytes by file offset and by address. Every
/// access is checked against the file's size; fields stay in the file's byte order (`number`).
template <class Elf>
class ElfSource {
 public:
  using Ehdr = typename Elf::Ehdr;
  using Phdr = typename Elf::Phdr;
  using Shdr = typename Elf::Shdr;

  ElfSource(const FileBytes& bytes, bool swapped) : file(bytes), number{swapped} {}

  Result<void> read_headers() {
    if (!file.read(0, &header, sizeof(header))) return damaged("it ends within the ELF header");
    const auto type = number(header.e_type);
    // Object files and cores have no PT_DYNAMIC; their tables may be huge, and are of no use here.
    if ((type != ET_DYN && type != ET_EXEC) || number(header.e_phnum) == 0) return {};
    if (number(header.e_phentsize) != sizeof(Phdr))
      return damaged("its program headers have an unexpected size");
    if (number(header.e_phnum) == PN_XNUM) return damaged("it has too many program headers");
    segments.resize(number(header.e_phnum));
    if (!file.read(number(header.e_phoff), segments.data(), segments.size() * sizeof(Phdr)))
      return damaged("its program headers lie beyond its end");
    return {};
  }

  /// The first segment of that type, or null.
  const Phdr* segment(std::uint32_t type) const {
    for (const auto& s : segments)
      if (number(s.p_type) == type) return &s;
    return nullptr;
  }
  /// As ld.so (dl-load.c, _dl_map_object_from_fd) does with PT_DYNAMIC: in files of debug
  /// information the segments are empty, and that is not damage.
  const Phdr* filled_segment(std::uint32_t type) const {
    const auto* s = segment(type);
    return s != nullptr && number(s->p_filesz) > 0 ? s : nullptr;
  }

  /// Where the bytes at `address` stand in the file, and how many follow in the same segment.
  struct Place {
    std::uint64_t offset = 0;
    std::uint64_t left = 0;
  };
  std::optional<Place> place(std::uint64_t address) const {
    for (const auto& s : segments) {
      const std::uint64_t start = number(s.p_vaddr);
      const std::uint64_t size = number(s.p_filesz);
      const std::uint64_t offset = number(s.p_offset);
      if (number(s.p_type) != PT_LOAD || address < start || address - start >= size) continue;
      const auto skip = address - start;
      if (offset > file.size() || skip >= file.size() - offset) return std::nullopt;
      return Place{offset + skip, std::min(size - skip, file.size() - offset - skip)};
    }
    return std::nullopt;
  }

  /// The section headers; empty when there are none, or no sound ones: ld.so never looks at them.
  std::vector<Shdr> sections() const {
    if (number(header.e_shentsize) != sizeof(Shdr)) return {};
    std::vector<Shdr> table(number(header.e_shnum));
    if (!file.read(number(header.e_shoff), table.data(), table.size() * sizeof(Shdr))) return {};
    return table;
  }

  std::optional<std::uint32_t> word(std::uint64_t offset) const {
    std::uint32_t value;
    if (!file.read(offset, &value, sizeof(value))) return std::nullopt;
    return number(value);
  }

  const FileBytes& file;
  ElfNumber number;
  Ehdr header{};
  std::vector<Phdr> segments;
};

}  // namespace heddle
