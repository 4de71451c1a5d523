// SPDX-License-Identifier: MIT

// Finds the next definition of a function in ld.so's list of what is loaded.

#include <elf.h>

#include "jobs/collector/interposed.hpp"
#include "jobs/collector/process.hpp"

namespace heddle::jobs {
namespace {

unsigned gnu_hash(const char* name) {
  unsigned hash = 5381;
  for (; *name; ++name) hash = hash * 33 + static_cast<unsigned char>(*name);
  return hash;
}

/// The function `name` of `map`, in its default version. dlsym would do it, but is in a library of
/// its own before glibc 2.34.
void* find_in(const link_map& map, const char* name) {
  const unsigned* hashes = nullptr;
  const ElfW(Sym)* symbols = nullptr;
  const char* strings = nullptr;
  const ElfW(Half)* versions = nullptr;
  const auto at = [&](const ElfW(Dyn) & entry) {
    // ld.so has relocated it, but not in the vDSO.
    return entry.d_un.d_ptr < map.l_addr ? entry.d_un.d_ptr + map.l_addr : entry.d_un.d_ptr;
  };
  for (const ElfW(Dyn)* entry = map.l_ld; entry && entry->d_tag != DT_NULL; ++entry) {
    if (entry->d_tag == DT_GNU_HASH) hashes = reinterpret_cast<const unsigned*>(at(*entry));
    if (entry->d_tag == DT_SYMTAB) symbols = reinterpret_cast<const ElfW(Sym)*>(at(*entry));
    if (entry->d_tag == DT_STRTAB) strings = reinterpret_cast<const char*>(at(*entry));
    if (entry->d_tag == DT_VERSYM) versions = reinterpret_cast<const ElfW(Half)*>(at(*entry));
  }
  if (!hashes || !symbols || !strings) return nullptr;
  const unsigned buckets = hashes[0], first = hashes[1], bloom = hashes[2];
  const unsigned* const bucket = hashes + 4 + bloom * (sizeof(ElfW(Addr)) / 4);
  const unsigned* const chain = bucket + buckets;
  const unsigned hash = gnu_hash(name);
  if (buckets == 0) return nullptr;
  for (unsigned i = bucket[hash % buckets]; i >= first; ++i) {
    const unsigned found = chain[i - first];
    const auto& symbol = symbols[i];
    if ((found | 1U) == (hash | 1U) && symbol.st_shndx != SHN_UNDEF &&
        !(versions && (versions[i] & 0x8000U)) && equal(strings + symbol.st_name, name))
      return reinterpret_cast<void*>(map.l_addr + symbol.st_value);
    if (found & 1U) break;
  }
  return nullptr;
}

}  // namespace

void* find_next(const char* name) {
  bool behind_us = false;
  for (const link_map* map = &_r_debug ? _r_debug.r_map : nullptr; map; map = map->l_next) {
    if (behind_us)
      if (void* found = find_in(*map, name)) return found;
    if (is_us(*map)) behind_us = true;
  }
  return nullptr;
}

}  // namespace heddle::jobs
