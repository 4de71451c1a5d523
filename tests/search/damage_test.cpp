// SPDX-License-Identifier: MIT
// Damaged libraries: the search finds what ld.so loads and reports as missing what ld.so refuses,
// without crash or hang.

#include "resolver/elf/cached_facts.hpp"
#include "resolver/search/os_world.hpp"
#include "resolver/search/search.hpp"
#include "tests/search/oracle.hpp"
#include "tests/search/tiny_elf.hpp"
#include "tests/support/prelude.hpp"

namespace heddle::test {
namespace {

constexpr auto kLoader = kNativeLoader;

struct Damage : testing::Test {
  Damage() {
    TinyElf app;
    app.interp = kLoader;
    app.rpath = dir / "one" + ":" + dir / "two";
    app.dependencies = {{Dependency::Kind::needed, "liba.so"}};
    write_elf(dir / "app", app);
    write_elf(dir / "two/liba.so", {});
    write_elf(dir / "two/libb.so", {});
    FactsOptions options;
    options.pool.worker_path = HEDDLE_ELF_WORKER;
    options.cache = CacheUse::none;
    facts.emplace(options);
  }

  Closure ours() {
    OsWorld world(*facts);
    const auto loader = value_or_throw(read_loader_profile(world, kLoader));
    return value_or_throw(resolve(world, loader, dir / "app", {}));
  }

  /// Compares both resolvers with `bytes` as one/liba.so.
  void compare(const std::string& bytes, const std::string& what, bool is_cut = false) {
    const auto path = dir / "one/liba.so";
    // A new inode each time, as for a rebuilt file.
    ::unlink(path.c_str());
    write_text_file(path, bytes, 0755);
    const auto theirs = ask_ld_so(dir / "app", true, kLoader);
    const auto closure = ours();
    if (theirs.status == 0 && is_cut && !closure.missing.empty()) {
      // ld.so maps the rest of the last page as zeros and continues without a dynamic section.
      EXPECT_NE(closure.missing[0].reason.find("damaged"), std::string::npos) << what;
    } else if (theirs.status == 0) {
      ASSERT_FALSE(theirs.lines.empty());
      ASSERT_GE(closure.objects.size(), 2U) << what << ": " << closure.missing.at(0).reason;
      EXPECT_EQ(closure.objects[1].path, theirs.lines[0].path) << what;
      ++loaded;
    } else if (theirs.status == 127) {
      ASSERT_FALSE(closure.missing.empty()) << what << ": " << theirs.err;
      ++refused;
    }  // else ld.so crashed; the search must only survive
  }

  TestDir dir;
  std::optional<CachedFacts> facts;
  std::size_t loaded = 0;
  std::size_t refused = 0;
};

TEST_F(Damage, library_with_a_damaged_header_byte_resolves_as_in_ld_so) {
  const auto good = TinyElf{}.bytes();
  for (std::size_t i = 0; i < sizeof(Elf64_Ehdr); ++i)
    for (const int value : {0, 1, 2, 3, 4, 0x7f, 0xff}) {
      if (good[i] == static_cast<char>(value)) continue;
      auto bytes = good;
      bytes[i] = static_cast<char>(value);
      compare(bytes, "byte " + std::to_string(i) + " = " + std::to_string(value));
    }
  EXPECT_GT(loaded, 100U);
  EXPECT_GT(refused, 50U);
}

TEST_F(Damage, truncated_library_resolves_as_in_ld_so) {
  const auto good = TinyElf{}.bytes();
  for (std::size_t length = 0; length < good.size(); length += length < 64 ? 7 : 23)
    compare(good.substr(0, length), "cut to " + std::to_string(length), true);
  EXPECT_GT(refused, 5U);
}

TEST_F(Damage, fifo_in_place_of_a_library_does_not_hang) {
  const auto path = dir / "one/liba.so";
  write_text_file(dir / "one/other", "");
  ASSERT_EQ(::mkfifo(path.c_str(), 0666), 0);  // ld.so would wait for a writer without end
  EXPECT_EQ(ours().missing.size(), 1U);
}

}  // namespace
}  // namespace heddle::test
