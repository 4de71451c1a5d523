// SPDX-License-Identifier: MIT
#pragma once

#include <elf.h>
#include <link.h>

#include "fuseovl/audit/kernel.hpp"

namespace heddle::audit {

/// The tables of an object that ld.so has mapped. They are trusted as ld.so trusts them: the
/// object's author runs code in this process.
struct LoadedObject {
  const ElfW(Rela) * calls = nullptr, *data = nullptr;  ///< DT_JMPREL, DT_RELA
  unsigned long calls_size = 0, data_size = 0;          ///< bytes
  const ElfW(Sym) * symbols = nullptr;
  const char* strings = nullptr;
  const ElfW(Half) * versions = nullptr;
  /// DT_GNU_HASH: the numbers of buckets, of the first symbol, of the Bloom filter's words, and its
  /// shift; the filter, buckets and chains. nullptr: none, or no symbols.
  const unsigned* hashes = nullptr;

  explicit LoadedObject(const link_map& map) {
    for (const ElfW(Dyn)* entry = map.l_ld; entry && entry->d_tag != DT_NULL; ++entry) {
      const unsigned long value = entry->d_un.d_ptr;
      // ld.so has relocated the addresses (elf/get-dynamic-info.h) unless the section is read only.
      const unsigned long at = value < map.l_addr ? value + map.l_addr : value;
      if (entry->d_tag == DT_JMPREL) calls = reinterpret_cast<const ElfW(Rela)*>(at);
      if (entry->d_tag == DT_PLTRELSZ) calls_size = value;
      if (entry->d_tag == DT_RELA) data = reinterpret_cast<const ElfW(Rela)*>(at);
      if (entry->d_tag == DT_RELASZ) data_size = value;
      if (entry->d_tag == DT_SYMTAB) symbols = reinterpret_cast<const ElfW(Sym)*>(at);
      if (entry->d_tag == DT_STRTAB) strings = reinterpret_cast<const char*>(at);
      if (entry->d_tag == DT_VERSYM) versions = reinterpret_cast<const ElfW(Half)*>(at);
      if (entry->d_tag == DT_GNU_HASH) hashes = reinterpret_cast<const unsigned*>(at);
    }
    if (!calls || !symbols || !strings) calls_size = 0;
    if (!data || !symbols || !strings) data_size = 0;
    if (!symbols || !strings) hashes = nullptr;
  }

  const char* name_of(unsigned long symbol) const { return strings + symbols[symbol].st_name; }

  /// What the object defines under `name`, in its default version, or nullptr.
  const ElfW(Sym) * definition(const char* name) const {
    if (!hashes || hashes[0] == 0) return nullptr;
    const unsigned buckets = hashes[0], first = hashes[1], bloom = hashes[2];
    const unsigned* const bucket = hashes + 4 + bloom * (sizeof(ElfW(Addr)) / 4);
    const unsigned* const chain = bucket + buckets;
    unsigned hash = 5381;
    for (const char* at = name; *at; ++at) hash = hash * 33 + static_cast<unsigned char>(*at);
    for (unsigned i = bucket[hash % buckets]; i >= first; ++i) {
      const unsigned found = chain[i - first];
      if ((found | 1U) == (hash | 1U) && symbols[i].st_shndx != SHN_UNDEF &&
          !(versions && (versions[i] & 0x8000U)) && equal(name_of(i), name))
        return &symbols[i];
      if (found & 1U) break;
    }
    return nullptr;
  }
};

}  // namespace heddle::audit
