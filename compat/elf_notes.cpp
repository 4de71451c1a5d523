// SPDX-License-Identifier: MIT
#include "compat/elf_notes.hpp"

#include <fmt/format.h>

#include <bit>
#include <cstring>

#include "base/elf_file.hpp"

namespace heddle::compat {
namespace {

constexpr std::uint32_t kIsaNeeded = 0xc0008002;  // GNU_PROPERTY_X86_ISA_1_NEEDED, binutils 2.36
constexpr std::uint32_t kIsaUsed = 0xc0010002;

std::uint32_t word_at(std::string_view bytes, std::size_t at) {
  std::uint32_t value = 0;
  if (at + sizeof value <= bytes.size()) std::memcpy(&value, bytes.data() + at, sizeof value);
  return value;
}

std::size_t padded(std::size_t size, std::size_t align) {
  return (size + align - 1) / align * align;
}

/// The properties of an NT_GNU_PROPERTY_TYPE_0 note (Linux Extensions to gABI): type, size, data
/// padded to the class's word.
void read_properties(std::string_view text, std::size_t align, ElfNotes& notes) {
  for (std::size_t at = 0; at + 8 <= text.size();) {
    const auto type = word_at(text, at);
    const std::size_t size = word_at(text, at + 4);
    if (size > text.size() - at - 8) return;
    if (type == kIsaNeeded && size == 4) notes.isa_needed |= word_at(text, at + 8);
    if (type == kIsaUsed && size == 4) notes.isa_used |= word_at(text, at + 8);
    at += 8 + padded(size, align);
  }
}

}  // namespace

Result<ElfNotes> read_elf_notes(int fd, const std::string& path) {
  static_assert(std::endian::native == std::endian::little);
  ElfNotes notes;
  const FileBytes bytes = file_bytes(fd);
  const auto elf = ElfFile::read(bytes);
  if (!elf && elf.error().code() == ENOEXEC)
    return fail(Error::with_code(ENOEXEC, path, "not an ELF file"));
  if (!elf || elf->is_swapped()) return notes;
  elf->visit_notes([&](std::uint32_t type, std::string_view owner, std::string_view text) {
    if (owner != "GNU") return false;
    if (type == NT_GNU_PROPERTY_TYPE_0) read_properties(text, elf->is_64() ? 8 : 4, notes);
    if (type == NT_GNU_ABI_TAG && text.size() >= 16 && word_at(text, 0) == ELF_NOTE_OS_LINUX)
      notes.kernel = fmt::format("{}.{}.{}", word_at(text, 4), word_at(text, 8), word_at(text, 12));
    return false;
  });
  return notes;
}

std::string isa_level_name(unsigned bit) {
  return bit == 0 ? "x86-64" : fmt::format("x86-64-v{}", bit + 1);
}

std::string highest_isa_level(std::uint32_t mask) {
  return mask == 0 ? std::string()
                   : isa_level_name(static_cast<unsigned>(std::bit_width(mask)) - 1);
}

}  // namespace heddle::compat
