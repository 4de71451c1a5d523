// SPDX-License-Identifier: MIT
#pragma once

// The only reader of ELF headers: ELF header, program and section headers, notes and dynamic
// entries of both classes and byte orders. Results are the 64-bit structures of <elf.h> in this
// machine's byte order. Files are untrusted: each access is checked against the file's size, and a
// damaged file is an error or an empty result.

#include <elf.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.hpp"

namespace heddle {

/// Random access to the bytes of a file: in memory, or by pread(2), since a mapping raises SIGBUS
/// when the file is truncated. Owns neither memory nor descriptor.
class FileBytes {
 public:
  explicit FileBytes(std::string_view content) : content_(content), size_(content.size()) {}
  FileBytes(int fd, std::uint64_t size) : fd_(fd), size_(size) {}

  std::uint64_t size() const { return size_; }
  /// Fills `to` from `offset`; false: not entirely inside the file.
  bool read(std::uint64_t offset, void* to, std::uint64_t count) const;
  /// The bytes; nullopt: not entirely inside the file.
  std::optional<std::string> text(std::uint64_t offset, std::uint64_t count) const;

 private:
  std::string_view content_;
  int fd_ = -1;
  std::uint64_t size_;
};

/// The regular file behind `fd`, at its present size; empty when fstat(2) fails.
FileBytes file_bytes(int fd);

/// The size of the longest ELF header.
inline constexpr std::size_t kElfHeaderSize = sizeof(Elf64_Ehdr);

/// EBADMSG, "damaged ELF file" and `reason`.
tl::unexpected<Error> damaged_elf(std::string_view reason);

class ElfFile {
 public:
  /// Reads the ELF header, and the program headers of programs and libraries, but not of object and
  /// core files. `file` must outlive the result. Failure, without a path: ENOEXEC, not an ELF file;
  /// EBADMSG, a damaged one.
  static Result<ElfFile> read(const FileBytes& file);

  /// The ELF header in `head`, read with class `elf_class` and this machine's byte order whatever
  /// its own fields are, as ld.so does. nullopt: too short.
  static std::optional<Elf64_Ehdr> raw_header(std::string_view head, std::uint8_t elf_class);

  const FileBytes& file() const { return *file_; }
  bool is_64() const { return header.e_ident[EI_CLASS] == ELFCLASS64; }
  /// The file's byte order is not this machine's.
  bool is_swapped() const { return swapped_; }

  /// The first segment of that type; null: none.
  const Elf64_Phdr* segment(std::uint32_t type) const;
  /// As segment(), if it has bytes in the file. Files of debug information have empty ones, which
  /// ld.so ignores (elf/dl-load.c, _dl_map_object_from_fd).
  const Elf64_Phdr* filled_segment(std::uint32_t type) const;

  /// The file offset of a virtual address, and the number of bytes from there in the segment.
  struct Place {
    std::uint64_t offset = 0;
    std::uint64_t left = 0;
  };
  std::optional<Place> place(std::uint64_t address) const;

  /// PT_INTERP's name; nullopt: none. Checked as by the kernel (fs/binfmt_elf.c, load_elf_binary).
  /// Failure: EBADMSG.
  Result<std::optional<std::string>> interpreter() const;
  /// The entries of PT_DYNAMIC up to DT_NULL; none without PT_DYNAMIC. Failure: EBADMSG.
  Result<std::vector<Elf64_Dyn>> dynamic_entries() const;
  /// The section headers; none when they are damaged, since ld.so does not read them.
  std::vector<Elf64_Shdr> sections() const;
  /// Calls `visit(type, owner, description)` for each note until it returns true: notes of PT_NOTE
  /// segments, then of sections (Go's linker). Damaged notes end their table, since ld.so accepts
  /// such files.
  using NoteVisitor = std::function<bool(std::uint32_t, std::string_view, std::string_view)>;
  void visit_notes(const NoteVisitor& visit) const;

  /// `count` records at `offset`; Wide is a 64-bit structure such as Elf64_Sym. nullopt: not
  /// entirely inside the file.
  template <class Wide>
  std::optional<std::vector<Wide>> table(std::uint64_t offset, std::uint64_t count) const;
  /// Converts a number from the file's byte order.
  template <class T>
  T number(T value) const;
  std::optional<std::uint32_t> word(std::uint64_t offset) const;

  Elf64_Ehdr header{};
  std::vector<Elf64_Phdr> segments;

 private:
  explicit ElfFile(const FileBytes& file) : file_(&file) {}
  Result<void> read_program_headers();
  bool visit_notes_at(std::uint64_t offset, std::uint64_t size, std::uint64_t align,
                      const NoteVisitor& visit) const;
  const FileBytes* file_;
  bool swapped_ = false;
};

template <class T>
T ElfFile::number(T value) const {
  if (!swapped_) return value;
  auto bits = static_cast<std::make_unsigned_t<T>>(value);
  if constexpr (sizeof(T) == 2) bits = __builtin_bswap16(bits);
  if constexpr (sizeof(T) == 4) bits = __builtin_bswap32(bits);
  if constexpr (sizeof(T) == 8) bits = __builtin_bswap64(bits);
  return static_cast<T>(bits);
}

}  // namespace heddle
