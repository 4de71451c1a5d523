// SPDX-License-Identifier: MIT
#pragma once

// The one reader of ELF headers: ELF header, program headers, section headers, notes and dynamic
// entries of files of both classes and byte orders. Everything comes out in the 64-bit structures
// of <elf.h> and in this machine's byte order. No byte of a file is trusted: each access is checked
// against the file's size, and a damaged file is an error or an empty result, never a crash.

#include <elf.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.hpp"

namespace heddle {

/// Random access to the bytes of a file of a known size: in memory, or through an open descriptor
/// by pread(2), since a mapping raises SIGBUS when the file is truncated. Borrows either.
class FileBytes {
 public:
  explicit FileBytes(std::string_view content) : content_(content), size_(content.size()) {}
  FileBytes(int fd, std::uint64_t size) : fd_(fd), size_(size) {}

  std::uint64_t size() const { return size_; }
  /// Fills `to` from `offset`; false when that is not wholly inside the file.
  bool read(std::uint64_t offset, void* to, std::uint64_t count) const;
  /// The bytes themselves; nullopt when they are not wholly inside the file.
  std::optional<std::string> text(std::uint64_t offset, std::uint64_t count) const;

 private:
  std::string_view content_;
  int fd_ = -1;
  std::uint64_t size_;
};

/// The regular file behind `fd`, at its present size; empty when fstat(2) fails.
FileBytes file_bytes(int fd);

/// The first bytes of a file that an ELF header of either class fits in.
inline constexpr std::size_t kElfHeaderSize = sizeof(Elf64_Ehdr);

/// EBADMSG, "damaged ELF file" and `reason`.
tl::unexpected<Error> damaged_elf(std::string_view reason);

class ElfFile {
 public:
  /// Reads the ELF header, and the program headers of programs and libraries: object files and
  /// core files have none here. `file` must outlive the result. Failure: ENOEXEC when it is no ELF
  /// file; EBADMSG with the reason when it is damaged. No path in either.
  static Result<ElfFile> read(const FileBytes& file);

  /// The ELF header in `head`, taken to be of class `elf_class` and of this machine's byte order,
  /// whatever it says itself: ld.so reads it so. nullopt: too short.
  static std::optional<Elf64_Ehdr> raw_header(std::string_view head, std::uint8_t elf_class);

  const FileBytes& file() const { return *file_; }
  bool is_64() const { return header.e_ident[EI_CLASS] == ELFCLASS64; }
  /// The file is of the other byte order than this machine.
  bool is_swapped() const { return swapped_; }

  /// The first segment of that type; null: none.
  const Elf64_Phdr* segment(std::uint32_t type) const;
  /// As segment(), for one that has bytes in the file: files of debug information have empty ones,
  /// which ld.so passes over (elf/dl-load.c, _dl_map_object_from_fd).
  const Elf64_Phdr* filled_segment(std::uint32_t type) const;

  /// Where the bytes at a virtual address are in the file, and how many follow in the segment.
  struct Place {
    std::uint64_t offset = 0;
    std::uint64_t left = 0;
  };
  std::optional<Place> place(std::uint64_t address) const;

  /// PT_INTERP's name, nullopt when there is none; checked as the kernel does
  /// (fs/binfmt_elf.c, load_elf_binary). Failure: EBADMSG.
  Result<std::optional<std::string>> interpreter() const;
  /// The entries of PT_DYNAMIC up to DT_NULL; none without PT_DYNAMIC. Failure: EBADMSG.
  Result<std::vector<Elf64_Dyn>> dynamic_entries() const;
  /// The section headers; none when they are damaged, for ld.so never looks at them.
  std::vector<Elf64_Shdr> sections() const;
  /// Calls `visit(type, owner, description)` for each note until it returns true. Notes of PT_NOTE
  /// segments, then those of sections (Go's linker). Damaged notes end their table: ld.so takes
  /// such files.
  using NoteVisitor = std::function<bool(std::uint32_t, std::string_view, std::string_view)>;
  void visit_notes(const NoteVisitor& visit) const;

  /// `count` records at `offset`, Wide being Elf64_Sym or another of these structures; nullopt
  /// when they are not wholly inside the file.
  template <class Wide>
  std::optional<std::vector<Wide>> table(std::uint64_t offset, std::uint64_t count) const;
  /// A number of the file's byte order.
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
