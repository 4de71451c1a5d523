// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <cstring>
#include <vector>

#include "resolver/elf/build_id_note.hpp"
#include "resolver/elf/elf_layout.hpp"

namespace heddle {

/// Puts parts of an ELF file together to a small one. Offset and address are the same in it: one
/// PT_LOAD spans it.
template <class Elf>
class ImageWriter {
 public:
  using Ehdr = typename Elf::Ehdr;
  using Phdr = typename Elf::Phdr;
  using Dyn = typename Elf::Dyn;

  /// `headers`: room for so many program headers besides the PT_LOAD.
  ImageWriter(ElfNumber number, std::size_t headers)
      : number_(number), image_(sizeof(Ehdr) + (1 + headers) * sizeof(Phdr)) {}

  /// Where the part then stands.
  std::uint64_t put(const void* data, std::size_t size) {
    const auto at = round_up(image_.size(), 8);
    image_.resize(at + size);
    if (size > 0) std::memcpy(image_.data() + at, data, size);
    return at;
  }
  std::uint64_t put(const std::vector<std::uint8_t>& part) { return put(part.data(), part.size()); }

  void add_tag(std::uint64_t tag, std::uint64_t value) {
    Dyn entry{};
    number_.set(entry.d_tag, tag);
    number_.set(entry.d_un.d_val, value);
    dynamic_.push_back(entry);
  }
  template <class Range>
  void add_tags(const Range& entries) {
    dynamic_.insert(dynamic_.end(), entries.begin(), entries.end());
  }
  /// Ends the dynamic section and puts it, with its header.
  void put_dynamic() {
    add_tag(DT_NULL, 0);
    const auto size = dynamic_.size() * sizeof(Dyn);
    add_header(PT_DYNAMIC, put(dynamic_.data(), size), size, size, 8);
  }
  void add_header(std::uint32_t type, std::uint64_t at, std::uint64_t file_size, std::uint64_t size,
                  std::uint64_t align) {
    Phdr h{};
    number_.set(h.p_type, type);
    number_.set(h.p_flags, PF_R);
    number_.set(h.p_offset, at);
    number_.set(h.p_vaddr, at);
    number_.set(h.p_paddr, at);
    number_.set(h.p_filesz, file_size);
    number_.set(h.p_memsz, size);
    number_.set(h.p_align, align);
    headers_.push_back(h);
  }

  /// The image, with the file's own ELF header less its sections.
  std::vector<std::uint8_t> finish(Ehdr header, bool has_segments) {
    // Later LIEFs read PT_DYNAMIC out of the PT_LOAD around it (Parser.tcc, parse_dyn_table).
    if (has_segments) add_header(PT_LOAD, 0, image_.size(), image_.size(), 4096);
    number_.set(header.e_shoff, 0);
    number_.set(header.e_shnum, 0);
    number_.set(header.e_shstrndx, 0);
    number_.set(header.e_phoff, headers_.empty() ? 0 : sizeof(Ehdr));
    number_.set(header.e_phnum, headers_.size());
    std::memcpy(image_.data(), &header, sizeof(header));
    if (!headers_.empty())
      std::memcpy(image_.data() + sizeof(Ehdr), headers_.data(), headers_.size() * sizeof(Phdr));
    return std::move(image_);
  }

 private:
  ElfNumber number_;
  std::vector<std::uint8_t> image_;
  std::vector<Phdr> headers_;
  std::vector<Dyn> dynamic_;
};

}  // namespace heddle
