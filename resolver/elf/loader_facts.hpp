// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "base/elf_file.hpp"
#include "resolver/elf/elf_facts.hpp"

namespace heddle {

/// The location of the symbols, for their reader.
struct SymbolTable {
  std::uint64_t count = 0;              ///< of symbols; not in PT_DYNAMIC
  std::uint64_t address = 0;            ///< DT_SYMTAB
  std::uint64_t strings = 0;            ///< DT_STRTAB
  std::uint64_t end = 0;                ///< where the later of the two tables ends in the file
  std::string names;                    ///< the string table
  std::vector<std::uint16_t> versions;  ///< DT_VERSYM, by symbol; empty: unversioned
  /// Data of libraries of which the program has a copy (R_*_COPY). Its symbol table defines them,
  /// but ld.so needs the library's, and ends the program without. Not known of 32-bit files.
  std::set<std::uint64_t> copied;
  std::map<unsigned, std::string> version_names;  ///< by the index in `versions`

  unsigned version_of(std::size_t symbol) const {
    return versions.empty() ? unsigned{VER_NDX_GLOBAL} : versions[symbol];
  }
};

/// The loader's part of ElfFacts: all but the symbol lists, with every offset, count and chain
/// checked. `symbols` may be null. Failure: EBADMSG with the reason.
Result<ElfFacts> read_loader_facts(const ElfFile& elf, SymbolTable* symbols = nullptr);

// symbol_reader.cpp

/// Reads the dynamic symbols of `elf` into exported_symbols and undefined_symbols of `facts`.
/// Failure: EBADMSG.
Result<void> read_symbols(const ElfFile& elf, const SymbolTable& table, ElfFacts& facts);

/// Adds one symbol, unless no other file can see it. Of `symbol` st_info, st_other and st_shndx
/// count.
void add_symbol(std::string name, const Elf64_Sym& symbol, unsigned version,
                const SymbolTable& table, ElfFacts& facts);

// lief_reader.cpp, if heddle is built with LIEF (HEDDLE_WITH_LIEF)

/// Call once before the sandbox closes: LIEF's logger initialises on first use.
void prepare_lief();

/// As read_symbols(). LIEF may crash or loop on damaged bytes: for inside the sandbox only.
/// Failure: EBADMSG, also when LIEF finds another number of symbols than `table` has.
Result<void> read_symbols_with_lief(const ElfFile& elf, const SymbolTable& table, ElfFacts& facts);

}  // namespace heddle
