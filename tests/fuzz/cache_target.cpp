// SPDX-License-Identifier: MIT
//
// An /etc/ld.so.cache of any content, for loaders that read it differently.
#include "resolver/search/ld_so_cache.hpp"
#include "tests/fuzz/target.hpp"
#include "tests/search/cache_bytes.hpp"

namespace heddle::fuzz {

void run(std::string_view bytes) {
  LoaderProfile recent;
  recent.hwcaps = {"x86-64-v3", "x86-64-v2"};
  recent.isa_levels = 7;
  LoaderProfile old = recent;
  old.glibc_minor = 31;
  old.hwcaps.clear();
  old.legacy_bits = 6;
  LoaderProfile narrow = recent;
  narrow.elf_class = 1;
  narrow.machine = 3;
  for (const auto& loader : {recent, old, narrow}) {
    const LdSoCache cache(std::string(bytes), loader);
    (void)cache.hwcaps_names();
    const auto lines = cache.lines();
    for (std::size_t i = 0; i < lines.size() && i < 64; ++i) {
      (void)compare_cache_names(lines[i].name, lines[lines.size() - 1 - i].name);
      (void)cache.lookup(std::string(lines[i].name));
    }
    (void)cache.lookup("libc.so.6");
    (void)cache.lookup("");
  }
}

std::vector<std::string> seeds() {
  using test::CacheEntry;
  using test::named_hwcap;
  const std::vector<CacheEntry> entries = {
      {"libz.so.1", "/lib/libz.so.1"},
      {"libx.so.10", "/opt/x86-64-v3/libx.so.10", 0x303, named_hwcap(1, 2)},
      {"libx.so.10", "/lib/libx.so.10"},
      {"libc.so.6", "/lib/libc.so.6", 0x303, 4},
      {"liba.so", "/lib32/liba.so", 0x3}};
  const std::vector<std::string> levels = {"x86-64-v2", "x86-64-v3"};
  return {test::new_cache(entries), test::new_cache(entries, levels), test::old_cache(entries),
          test::old_cache(entries, test::new_cache(entries, levels))};
}

}  // namespace heddle::fuzz
