// SPDX-License-Identifier: MIT
// Where a file has room for a longer string (StringRoom), and where it must not be taken to have.
#include <elf.h>

#include <cstring>

#include "resolver/elf/worker_pool.hpp"
#include "tests/elf/elf_fixture.hpp"

namespace heddle {
namespace {

/// A file whose bytes are put in order by hand: what a linker made, with something changed in it.
class Room : public ElfTest {
 protected:
  void SetUp() override {
    bytes_ = value_or_throw(
        read_file(build("libroom.so", "int f(void) { return 1; }",
                        {"-shared", "-fPIC", "-Wl,-rpath,/a:/b", "-Wl,-z,separate-code"})));
    std::memcpy(&header_, bytes_.data(), sizeof(header_));
    room_ = found();
    ASSERT_GT(room_.size, 0U);
  }
  StringRoom found() {
    WorkerPool pool(options());
    const auto file = write("changed" + std::to_string(++files_), bytes_);
    return value_or_throw(pool.facts(file, FactsDetail::loader)).elf.string_room;
  }
  /// The segment before the room.
  std::size_t segment() const {
    for (std::size_t i = 0; i < header_.e_phnum; ++i)
      if (const auto s = segment(i); s.p_type == PT_LOAD && s.p_offset + s.p_filesz == room_.offset)
        return i;
    return header_.e_phnum;
  }
  Elf64_Phdr segment(std::size_t i) const {
    Elf64_Phdr out{};
    std::memcpy(&out, bytes_.data() + header_.e_phoff + i * sizeof(out), sizeof(out));
    return out;
  }
  void put(std::size_t i, const Elf64_Phdr& segment) {
    std::memcpy(bytes_.data() + header_.e_phoff + i * sizeof(segment), &segment, sizeof(segment));
  }

  std::string bytes_;
  Elf64_Ehdr header_{};
  StringRoom room_;
  int files_ = 0;
};

TEST_F(Room, is_of_zeros_alone) {
  for (const auto at : {room_.offset, room_.offset + room_.size - 1}) {
    auto& byte = bytes_[at];
    byte = 'x';
    EXPECT_NE(found().offset, room_.offset) << at;
    byte = '\0';
  }
  EXPECT_EQ(found(), room_);
}

TEST_F(Room, holds_nothing_of_another_segment_or_section) {
  // Mapped from elsewhere too, zeros or not.
  auto whole = bytes_;
  for (std::size_t i = 0; i < header_.e_phnum; ++i) {
    auto other = segment(i);
    if (other.p_type != PT_NOTE) continue;
    other.p_offset = room_.offset + room_.size / 2;
    other.p_filesz = 1;
    put(i, other);
    EXPECT_NE(found().offset, room_.offset);
    bytes_ = whole;
    break;
  }
  Elf64_Shdr section{};
  auto* const place = bytes_.data() + header_.e_shoff + sizeof(section);
  std::memcpy(&section, place, sizeof(section));
  section.sh_offset = room_.offset + room_.size - 1;
  section.sh_size = 1;
  std::memcpy(place, &section, sizeof(section));
  EXPECT_NE(found().offset, room_.offset);
}

TEST_F(Room, is_in_memory_that_can_be_read_and_not_written_to) {
  const auto i = segment();
  const auto whole = segment(i);
  for (const Elf64_Word flags : {PF_X, PF_R | PF_W, 0}) {
    auto changed = whole;
    changed.p_flags = flags;
    put(i, changed);
    EXPECT_NE(found().offset, room_.offset) << flags;
  }
  put(i, whole);
  EXPECT_EQ(found(), room_);
}

TEST_F(Room, is_neither_behind_the_last_segment_nor_before_the_string_table) {
  const auto i = segment();
  // All others are gone or lie below it: of the last one's page the kernel clears the rest.
  const auto whole = bytes_;
  for (std::size_t other = 0; other < header_.e_phnum; ++other)
    if (auto above = segment(other);
        above.p_type == PT_LOAD && above.p_vaddr > segment(i).p_vaddr) {
      above.p_type = PT_NULL;
      put(other, above);
    }
  EXPECT_NE(found().offset, room_.offset);
  bytes_ = whole;
  // d_val counts from the table's start.
  const auto table = segment(i).p_vaddr + segment(i).p_filesz + room_.size;
  for (std::size_t at = 0; at + sizeof(Elf64_Dyn) <= bytes_.size(); at += 8) {
    Elf64_Dyn entry{};
    std::memcpy(&entry, bytes_.data() + at, sizeof(entry));
    if (entry.d_tag != DT_STRTAB || entry.d_un.d_ptr == 0 || entry.d_un.d_ptr > bytes_.size())
      continue;
    entry.d_un.d_ptr = table;
    std::memcpy(bytes_.data() + at, &entry, sizeof(entry));
  }
  WorkerPool pool(options());
  const auto facts = pool.facts(write("table", bytes_), FactsDetail::loader);
  EXPECT_TRUE(!facts || facts->elf.string_room.offset != room_.offset);
}

}  // namespace
}  // namespace heddle
