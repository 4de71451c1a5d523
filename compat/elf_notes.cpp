// SPDX-License-Identifier: MIT
#include "compat/elf_notes.hpp"

#include <elf.h>
#include <fcntl.h>
#include <fmt/format.h>

#include <bit>
#include <cstring>
#include <vector>

#include "base/fd.hpp"

namespace heddle::compat {
namespace {

constexpr std::uint32_t kIsaNeeded = 0xc0008002;  // GNU_PROPERTY_X86_ISA_1_NEEDED, binutils 2.36
constexpr std::uint32_t kIsaUsed = 0xc0010002;
constexpr std::size_t kLongestNotes = 65536;

bool read_at(int fd, std::uint64_t offset, void* to, std::size_t count) {
  auto* bytes = static_cast<char*>(to);
  while (count > 0) {
    const auto got = ::pread(fd, bytes, count, static_cast<off_t>(offset));
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return false;
    bytes += got;
    offset += static_cast<std::uint64_t>(got);
    count -= static_cast<std::size_t>(got);
  }
  return true;
}

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

void read_notes(std::string_view bytes, std::size_t align, ElfNotes& notes) {
  align = align == 8 ? 8 : 4;
  for (std::size_t at = 0; at + 12 <= bytes.size();) {
    const std::size_t name_size = word_at(bytes, at);
    const std::size_t text_size = word_at(bytes, at + 4);
    const auto type = word_at(bytes, at + 8);
    if (name_size > bytes.size() || text_size > bytes.size()) return;
    const auto text = at + padded(12 + name_size, align);
    if (text + text_size > bytes.size()) return;
    const bool gnu = name_size == 4 && std::memcmp(bytes.data() + at + 12, "GNU", 4) == 0;
    const auto content = bytes.substr(text, text_size);
    if (gnu && type == NT_GNU_PROPERTY_TYPE_0) read_properties(content, align, notes);
    if (gnu && type == NT_GNU_ABI_TAG && text_size >= 16 &&
        word_at(content, 0) == ELF_NOTE_OS_LINUX)
      notes.kernel =
          fmt::format("{}.{}.{}", word_at(content, 4), word_at(content, 8), word_at(content, 12));
    at = padded(text + text_size, align);
  }
}

template <class Ehdr, class Phdr>
ElfNotes notes_of(int fd) {
  ElfNotes notes;
  Ehdr header{};
  if (!read_at(fd, 0, &header, sizeof header) || header.e_phentsize != sizeof(Phdr)) return notes;
  std::vector<Phdr> segments(header.e_phnum);
  if (!read_at(fd, header.e_phoff, segments.data(), segments.size() * sizeof(Phdr))) return notes;
  for (const auto& segment : segments) {
    // PT_GNU_PROPERTY covers what a PT_NOTE covers too.
    if (segment.p_type != PT_NOTE || segment.p_filesz > kLongestNotes) continue;
    std::string bytes(segment.p_filesz, '\0');
    if (read_at(fd, segment.p_offset, bytes.data(), bytes.size()))
      read_notes(bytes, segment.p_align, notes);
  }
  return notes;
}

}  // namespace

Result<ElfNotes> read_elf_notes(int fd, const std::string& path) {
  unsigned char ident[EI_NIDENT] = {};
  if (!read_at(fd, 0, ident, sizeof ident) || std::memcmp(ident, ELFMAG, SELFMAG) != 0)
    return fail(Error::with_code(ENOEXEC, path, "not an ELF file"));
  static_assert(std::endian::native == std::endian::little);
  if (ident[EI_DATA] != ELFDATA2LSB) return ElfNotes{};
  return ident[EI_CLASS] == ELFCLASS64 ? notes_of<Elf64_Ehdr, Elf64_Phdr>(fd)
                                       : notes_of<Elf32_Ehdr, Elf32_Phdr>(fd);
}

std::string isa_level_name(unsigned bit) {
  return bit == 0 ? "x86-64" : fmt::format("x86-64-v{}", bit + 1);
}

std::string highest_isa_level(std::uint32_t mask) {
  return mask == 0 ? std::string()
                   : isa_level_name(static_cast<unsigned>(std::bit_width(mask)) - 1);
}

}  // namespace heddle::compat
