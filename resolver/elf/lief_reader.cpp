// SPDX-License-Identifier: MIT
// The one file that includes LIEF. Debian 12 has 0.9.0; what later versions changed (ParserConfig,
// result<> instead of exceptions, enum class members, pointers for references) is bridged here, by
// asking the headers and never by version number. Its headers come first: they undefine what
// <elf.h> defines.
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wall"
#pragma GCC diagnostic ignored "-Wextra"
#pragma GCC diagnostic ignored "-Wshadow"
#pragma GCC diagnostic ignored "-Wconversion"
#pragma GCC diagnostic ignored "-Wold-style-cast"
#include <LIEF/ELF.hpp>
#include <LIEF/logging.hpp>
#if __has_include(<LIEF/ELF/ParserConfig.hpp>)
#include <LIEF/ELF/ParserConfig.hpp>
#define HEDDLE_LIEF_HAS_CONFIG 1
#endif
#pragma GCC diagnostic pop

#include "resolver/elf/loader_facts.hpp"

#include <cstddef>
#include <cstring>
#include <exception>
#include <memory>
#include <string>
#include <vector>

namespace heddle {
namespace {

namespace lief = LIEF::ELF;
using Image = std::vector<std::uint8_t>;

/// Of an enum or number: all LIEFs use the ELF specification's values.
template <class T>
std::uint64_t raw(T value) {
  return static_cast<std::uint64_t>(value);
}

#ifdef HEDDLE_LIEF_HAS_CONFIG

std::unique_ptr<lief::Binary> parse(const ElfFile& elf, const SymbolTable&) {
  Image image(elf.file().size());
  if (!elf.file().read(0, image.data(), image.size())) return nullptr;
  lief::ParserConfig config;
  config.parse_relocations = false;
  config.parse_overlay = false;
  config.count_mtd = static_cast<decltype(config.count_mtd)>(1);  // by the section header
  return lief::Parser::parse(image, config);
}

#else

// LIEF 0.9 has no such options: it copies each section and segment and makes an object of each
// relocation, 3.5 times the work of the symbols. So it reads the file up to the end of its symbol
// and string tables, edited: the dynamic section names these two tables only, and the one section
// header gives the number of symbols, since no other count of LIEF's is right for every file
// (Parser.tcc, get_numberof_dynamic_symbols: COUNT_AUTO fails above 3000 symbols, COUNT_HASH with a
// large DT_GNU_HASH).
template <class Ehdr, class Phdr, class Shdr, class Dyn, class Sym>
Image read_image(const ElfFile& elf, const SymbolTable& table) {
  struct Tail {
    Dyn dynamic[4];
    Shdr section;
  };
  Image image(table.end + sizeof(Tail));
  if (!elf.file().read(0, image.data(), table.end)) return {};
  const auto set = [&elf](auto& field, std::uint64_t value) {
    field = elf.number(static_cast<std::remove_reference_t<decltype(field)> >(value));
  };
  Tail tail{};
  const std::pair<std::int64_t, std::uint64_t> entries[] = {
      {DT_STRTAB, table.strings}, {DT_SYMTAB, table.address}, {DT_SYMENT, sizeof(Sym)}};
  for (std::size_t i = 0; i < std::size(entries); ++i) {
    set(tail.dynamic[i].d_tag, static_cast<std::uint64_t>(entries[i].first));
    set(tail.dynamic[i].d_un.d_val, entries[i].second);
  }
  set(tail.section.sh_type, SHT_DYNSYM);
  set(tail.section.sh_size, table.count * sizeof(Sym));
  std::memcpy(image.data() + table.end, &tail, sizeof(tail));

  Ehdr header;
  std::memcpy(&header, image.data(), sizeof(header));
  set(header.e_shoff, table.end + offsetof(Tail, section));
  set(header.e_shnum, 1);
  std::memcpy(image.data(), &header, sizeof(header));
  for (std::size_t i = 0; i < elf.segments.size(); ++i) {
    const auto at = elf.header.e_phoff + i * sizeof(Phdr);
    if (at + sizeof(Phdr) > table.end) return {};
    Phdr segment;
    std::memcpy(&segment, image.data() + at, sizeof(segment));
    const bool dynamic = elf.segments[i].p_type == PT_DYNAMIC;
    if (dynamic) set(segment.p_offset, table.end);
    set(segment.p_filesz, dynamic ? sizeof(tail.dynamic) : 0);
    std::memcpy(image.data() + at, &segment, sizeof(segment));
  }
  return image;
}

std::unique_ptr<lief::Binary> parse(const ElfFile& elf, const SymbolTable& table) {
  const auto image =
      elf.is_64()
          ? read_image<Elf64_Ehdr, Elf64_Phdr, Elf64_Shdr, Elf64_Dyn, Elf64_Sym>(elf, table)
          : read_image<Elf32_Ehdr, Elf32_Phdr, Elf32_Shdr, Elf32_Dyn, Elf32_Sym>(elf, table);
  if (image.empty()) return nullptr;
  return lief::Parser::parse(image, "", lief::DYNSYM_COUNT_METHODS::COUNT_SECTION);
}

#endif

}  // namespace

void prepare_lief() {
#if defined(HEDDLE_LIEF_HAS_CONFIG) || !__has_include(<LIEF/logging++.hpp>)
  LIEF::logging::disable();
#else  // up to 0.10
  LIEF::Logger::disable();
#endif
}

Result<void> read_symbols_with_lief(const ElfFile& elf, const SymbolTable& table, ElfFacts& facts) {
  if (table.count == 0) return {};
  try {
    const auto binary = parse(elf, table);
    if (!binary) return damaged_elf("LIEF does not read it");
    std::size_t index = 0;
    for (const auto& symbol : binary->dynamic_symbols()) {
      if (index == table.count) break;
      Elf64_Sym plain{};
      plain.st_info = static_cast<unsigned char>(ELF64_ST_INFO(raw(symbol.binding()), 0));
      plain.st_other = symbol.other();
      plain.st_shndx =
          table.copied.contains(index) ? SHN_UNDEF : static_cast<std::uint16_t>(symbol.shndx());
      add_symbol(std::string(symbol.name()), plain, table.version_of(index), table, facts);
      ++index;
    }
    if (index != table.count) return damaged_elf("LIEF does not read all of its symbols");
    return {};
  } catch (const std::bad_alloc&) {
    return damaged_elf("it takes more memory than is allowed");
  } catch (const std::exception& e) {
    return damaged_elf(e.what());
  }
}

}  // namespace heddle
