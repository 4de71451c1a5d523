// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "resolver/elf/elf_facts.hpp"

namespace heddle::compat {

/// What references a group of objects can satisfy, by glibc's rules (elf/dl-lookup.c, check_match):
/// a reference with a version takes that version, or a definition that has none; one without takes
/// any. Hashes only (64 bits): a set of libc, libstdc++ and libm is 100 KiB. A definition with a
/// hidden version is taken for a reference without version, though ld.so would pass it over:
/// ElfFacts does not tell, and only an object linked without the library has such a reference.
class SymbolSet {
 public:
  /// What references look for, computed once.
  struct Reference {
    explicit Reference(const DynamicSymbol& symbol);
    std::uint64_t exact;  ///< name and version; for one without version: the name
    std::uint64_t bare;   ///< the name as a definition without version
  };

  void add(const ElfFacts& elf);
  void add(const SymbolSet& other);
  std::size_t bytes() const { return slots_.size() * sizeof(std::uint64_t); }
  bool satisfies(const Reference& reference) const {
    return contains(reference.exact) || contains(reference.bare);
  }

 private:
  void insert(std::uint64_t hash);
  bool contains(std::uint64_t hash) const;
  void grow();

  std::vector<std::uint64_t> slots_;  ///< open addressing, 0: free; a power of two in size
  std::size_t used_ = 0;
};

}  // namespace heddle::compat
