// SPDX-License-Identifier: MIT
#include "resolver/elf/data_segments.hpp"

#include <elf.h>
#include <fcntl.h>
#include <gtest/gtest.h>

#include <cstring>

#include "base/fd.hpp"
#include "tests/support/build_elf.hpp"
#include "tests/support/test_dir.hpp"

namespace heddle::test {
namespace {

constexpr std::size_t kLimit = 1U << 24;
constexpr const char* kConstant = "Wool Version: 4.0.2";
constexpr const char* kVariable = "a word that may change";
// Words among the instructions, which stand for all code.
constexpr const char* kCode = "these are instructions";

Result<std::string> data_of(const std::string& path, std::size_t limit = kLimit) {
  const auto fd = value_or_throw(open_file(path, O_RDONLY));
  return read_data_segments(fd.get(), path, limit);
}

bool holds(const std::string& bytes, const char* words) { return bytes.find(words) != bytes.npos; }

class DataSegments : public ::testing::Test {
 protected:
  std::string library(const std::string& flag) const {
    return build_library({.output = dir_ / "liba.so",
                          .source = std::string("const char* constant(void) { return \"") +
                                    kConstant + "\"; }\nchar variable[] = \"" + kVariable +
                                    "\";\n__asm__(\".text\\n.ascii \\\"" + kCode + "\\\"\\n\");\n",
                          .flags = {"-Wl,-z," + flag}});
  }
  /// The library with other words in its headers.
  template <class Change>
  std::string damaged(Change change) const {
    auto bytes = value_or_throw(read_file(library("separate-code")));
    change(*reinterpret_cast<Elf64_Ehdr*>(bytes.data()),
           reinterpret_cast<Elf64_Phdr*>(bytes.data() + sizeof(Elf64_Ehdr)));
    write_text_file(dir_ / "damaged.so", bytes);
    return dir_ / "damaged.so";
  }
  TestDir dir_;
};

TEST_F(DataSegments, all_but_the_code_is_read) {
  const auto path = library("separate-code");
  const auto data = value_or_throw(data_of(path));
  EXPECT_TRUE(holds(data, kConstant));
  EXPECT_TRUE(holds(data, kVariable));
  EXPECT_FALSE(holds(data, kCode));
  EXPECT_TRUE(holds(value_or_throw(read_file(path)), kCode));
}

TEST_F(DataSegments, constants_that_a_linker_put_beside_the_code_are_read) {
  const auto data = value_or_throw(data_of(library("noseparate-code")));
  EXPECT_TRUE(holds(data, kConstant));
  EXPECT_TRUE(holds(data, kVariable));
}

TEST_F(DataSegments, what_is_no_elf_file_of_this_machine_comes_whole) {
  for (const std::string text : {"", "\177ELF", "a linker script, perhaps"}) {
    write_text_file(dir_ / "text", text);
    EXPECT_EQ(value_or_throw(data_of(dir_ / "text")), text);
  }
  const auto other =
      damaged([](Elf64_Ehdr& header, Elf64_Phdr*) { header.e_ident[EI_CLASS] = ELFCLASS32; });
  EXPECT_EQ(value_or_throw(data_of(other)), value_or_throw(read_file(other)));
}

TEST_F(DataSegments, numbers_beyond_the_file_read_nothing_beyond_it) {
  const auto nowhere = damaged([](Elf64_Ehdr& header, Elf64_Phdr*) { header.e_phoff = ~0ULL; });
  EXPECT_EQ(value_or_throw(data_of(nowhere)), value_or_throw(read_file(nowhere)));
  const auto many = damaged([](Elf64_Ehdr& header, Elf64_Phdr*) { header.e_phnum = 0xFFFE; });
  EXPECT_EQ(value_or_throw(data_of(many)), value_or_throw(read_file(many)));
  const auto long_ones = damaged([](Elf64_Ehdr& header, Elf64_Phdr* segments) {
    for (int i = 0; i < header.e_phnum; ++i) segments[i].p_filesz = ~0ULL;
  });
  EXPECT_TRUE(holds(value_or_throw(data_of(long_ones)), kConstant));
  const auto far = damaged([](Elf64_Ehdr& header, Elf64_Phdr* segments) {
    for (int i = 0; i < header.e_phnum; ++i) segments[i].p_offset = ~0ULL - 1;
  });
  EXPECT_EQ(value_or_throw(data_of(far)), "");
}

TEST_F(DataSegments, more_than_the_limit_is_refused) {
  const auto data = data_of(library("separate-code"), 1000);
  ASSERT_FALSE(data.has_value());
  EXPECT_EQ(data.error().code(), EFBIG);
}

}  // namespace
}  // namespace heddle::test
