// SPDX-License-Identifier: MIT

#include "resolver/policy/versions.hpp"
#include "resolver/search/ld_so_cache.hpp"
#include "tests/support/prelude.hpp"

namespace heddle::test {
namespace {

using policy::compare_offers;
using policy::Contains;
using policy::is_glibc_part;

TEST(Versions, superset_contains_the_other) {
  EXPECT_EQ(compare_offers({"A", "B"}, {"B", "A"}), Contains::equal);
  EXPECT_EQ(compare_offers({"A", "B"}, {"A"}), Contains::first);
  EXPECT_EQ(compare_offers({"A"}, {"A", "B"}), Contains::second);
  EXPECT_EQ(compare_offers({"A", "C"}, {"A", "B"}), Contains::neither);
  EXPECT_EQ(compare_offers({}, {}), Contains::equal);
}

TEST(Versions, identify_the_parts_of_glibc) {
  ElfFacts facts;
  EXPECT_FALSE(is_glibc_part(facts));
  facts.version_definitions = {"GLIBC_2.2.5", "GLIBC_2.34"};
  EXPECT_TRUE(is_glibc_part(facts));
  facts.version_definitions = {"GLIBC_2.2.5", "XCRYPT_2.0"};
  EXPECT_FALSE(is_glibc_part(facts));
  facts.version_needs = {{"libc.so.6", "GLIBC_PRIVATE", false}};
  EXPECT_TRUE(is_glibc_part(facts));
}

TEST(LdSoCacheWriter, puts_new_entries_first_and_keeps_the_others) {
  LoaderProfile loader;
  const auto bytes = run({"cat", "/etc/ld.so.cache"}).out;
  const LdSoCache old(bytes, loader);
  ASSERT_FALSE(old.lines().empty());
  const auto written =
      write_ld_so_cache(old, {{"libc.so.6", "/m/libc.so.6"}, {"liba b.so.9", "/m/x"}}, loader);
  const LdSoCache cache(written, loader);
  EXPECT_EQ(cache.lookup("libc.so.6"), "/m/libc.so.6");
  EXPECT_EQ(cache.lookup("liba b.so.9"), "/m/x");
  for (const auto& line : old.lines()) {
    const std::string name(line.name);
    EXPECT_EQ(cache.lookup(name), name == "libc.so.6" ? "/m/libc.so.6" : old.lookup(name));
  }
  const TestDir dir;
  write_text_file(dir / "cache", written);
  const auto printed = run({"ldconfig", "-p", "-C", dir / "cache"});
  EXPECT_EQ(printed.status, 0) << printed.err;
  EXPECT_THAT(printed.out, HasSubstr("liba b.so.9 (libc6,x86-64) => /m/x"));
}

}  // namespace
}  // namespace heddle::test
