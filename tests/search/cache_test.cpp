// SPDX-License-Identifier: MIT
#include "tests/search/cache_bytes.hpp"

#include "resolver/search/ld_so_cache.hpp"
#include "tests/support/prelude.hpp"

namespace heddle::test {
namespace {

LoaderProfile profile(int minor = 36) {
  LoaderProfile loader;
  loader.glibc_minor = minor;
  loader.hwcaps = {"x86-64-v3", "x86-64-v2"};
  loader.isa_levels = 0x7;
  loader.legacy_bits = 1U << 1;
  return loader;
}

TEST(LdSoCache, finds_a_name_in_the_old_format_and_in_the_new_one_behind_it) {
  const auto old = old_cache({{"libz.so.1", "/old/libz.so.1"}, {"liba.so.1", "/old/liba.so.1"}});
  EXPECT_EQ(LdSoCache(old, profile()).lookup("liba.so.1"), "/old/liba.so.1");
  const auto both =
      old_cache({{"liba.so.1", "/old/liba.so.1"}}, new_cache({{"liba.so.1", "/new/liba.so.1"}}));
  EXPECT_EQ(LdSoCache(both, profile()).lookup("liba.so.1"), "/new/liba.so.1");
}

TEST(LdSoCache, entries_of_another_abi_are_skipped) {
  const LdSoCache cache(new_cache({{"liba.so.1", "/x32/liba.so.1", 0x803},
                                   {"liba.so.1", "/64/liba.so.1", 0x303},
                                   {"liba.so.1", "/32/liba.so.1", 0x3}}),
                        profile());
  EXPECT_EQ(cache.lookup("liba.so.1"), "/64/liba.so.1");
}

TEST(LdSoCache, best_level_of_this_cpu_wins_at_any_position) {
  const std::vector<CacheEntry> entries = {{"liba.so.1", "/v2", 0x303, named_hwcap(0, 1)},
                                           {"liba.so.1", "/v3", 0x303, named_hwcap(1, 2)},
                                           {"liba.so.1", "/v4", 0x303, named_hwcap(2, 3)},
                                           {"liba.so.1", "/plain", 0x303, 0}};
  const std::vector<std::string> names = {"x86-64-v2", "x86-64-v3", "x86-64-v4"};
  EXPECT_EQ(LdSoCache(new_cache(entries, names), profile()).lookup("liba.so.1"), "/v3");
  // The CPU lacks the level of an entry.
  auto weak = profile();
  weak.isa_levels = 0x3;
  EXPECT_EQ(LdSoCache(new_cache(entries, names), weak).lookup("liba.so.1"), "/v2");
  // glibc-hwcaps came with 2.33.
  EXPECT_EQ(LdSoCache(new_cache(entries, names), profile(31)).lookup("liba.so.1"), "/plain");
  // Without the extension the index has no meaning.
  EXPECT_EQ(LdSoCache(new_cache(entries), profile()).lookup("liba.so.1"), "/plain");
}

TEST(LdSoCache, legacy_entries_serve_until_2_39) {
  const std::vector<CacheEntry> entries = {{"liba.so.1", "/avx512", 0x303, 1U << 2},
                                           {"liba.so.1", "/x86_64", 0x303, 1U << 1},
                                           {"liba.so.1", "/plain", 0x303, 0}};
  EXPECT_EQ(LdSoCache(new_cache(entries), profile()).lookup("liba.so.1"), "/x86_64");
  EXPECT_EQ(LdSoCache(new_cache(entries), profile(40)).lookup("liba.so.1"), "/plain");
  const std::vector<CacheEntry> haswell = {{"liba.so.1", "/haswell", 0x303, UINT64_C(1) << 50},
                                           {"liba.so.1", "/plain", 0x303, 0}};
  EXPECT_EQ(LdSoCache(new_cache(haswell), profile()).lookup("liba.so.1"), "/plain");
  auto intel = profile();
  intel.platform = "haswell";
  EXPECT_EQ(LdSoCache(new_cache(haswell), intel).lookup("liba.so.1"), "/haswell");
}

TEST(LdSoCache, cache_of_another_byte_order_or_format_is_empty) {
  auto bytes = new_cache({{"liba.so.1", "/l/liba.so.1"}});
  bytes[28] = 3;  // big endian
  EXPECT_EQ(LdSoCache(bytes, profile()).lookup("liba.so.1"), "");
  bytes[28] = 0;  // unset by an old ldconfig
  EXPECT_EQ(LdSoCache(bytes, profile()).lookup("liba.so.1"), "/l/liba.so.1");
  EXPECT_EQ(LdSoCache("", profile()).lookup("liba.so.1"), "");
  EXPECT_EQ(LdSoCache("hello", profile()).lookup("liba.so.1"), "");
  EXPECT_EQ(LdSoCache().lookup("liba.so.1"), "");
}

TEST(LdSoCache, reads_all_of_this_machines_cache_as_ldconfig_prints_it) {
  auto bytes = read_file("/etc/ld.so.cache");
  if (!bytes || !std::filesystem::exists("/sbin/ldconfig")) GTEST_SKIP() << "skipped: no ldconfig";
  const LdSoCache cache(std::move(*bytes), profile());
  const auto list = run_checked({"/sbin/ldconfig", "-p"}).out;
  std::size_t compared = 0;
  std::string before;
  std::istringstream lines(list);
  for (std::string line; std::getline(lines, line);) {
    const auto kind = line.find(" (libc6,x86-64) => ");
    if (kind == line.npos) continue;
    const auto name = line.substr(1, kind - 1);
    if (name == before) continue;  // ld.so takes the first
    before = name;
    EXPECT_EQ(cache.lookup(name), line.substr(kind + 19));
    ++compared;
  }
  EXPECT_GT(compared, 10U);
}

}  // namespace
}  // namespace heddle::test
