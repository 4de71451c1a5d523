// SPDX-License-Identifier: MIT
// Damaged files: each gets facts or one error about itself, no worker crashes, and none takes long.
// The seed is fixed, so that failures are reproducible.
#include <elf.h>
#include <unistd.h>

#include <chrono>
#include <cstring>
#include <functional>
#include <random>

#include "tests/elf/elf_fixture.hpp"

namespace heddle {
namespace {

class DamagedInput : public ElfTest {
 protected:
  /// Thousands of small files: in memory, if possible.
  DamagedInput() : ElfTest(::access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "") {}

  /// A small library with every part that is parsed.
  std::string good() {
    const auto script = write("map", "V1 { global: a; local: *; }; V2 { global: b; } V1;");
    return value_or_throw(read_file(
        build("libgood.so",
              "__thread int t; int a(void) { return t; } int b(void) { return 2; } void* "
              "dlopen(const char*, int); void* use(void) { return dlopen(0, 1); }",
              {"-shared", "-fPIC", "-Wl,--version-script=" + script, "-Wl,-soname,libgood.so.1",
               "-Wl,-rpath,/r", "-Wl,--hash-style=both", "-Wl,--build-id", "-lc"})));
  }

  /// Reads each with both details and checks the errors; the number of refused ones.
  std::size_t read_all_of(const std::vector<std::string>& corpus) {
    std::size_t refused = 0;
    const auto start = std::chrono::steady_clock::now();
    CachedFacts pool(options());
    std::vector<std::string> paths;
    for (std::size_t i = 0; i < corpus.size(); ++i)
      paths.push_back(write("f" + std::to_string(i), corpus[i]));
    for (const auto detail : {FactsDetail::loader, FactsDetail::symbols}) {
      pool.prefetch(paths, detail);
      for (const auto& p : paths) {
        const auto facts = pool.facts(p, detail);
        if (facts) continue;
        ++refused;
        const auto& error = facts.error();
        EXPECT_TRUE(error.code() == EBADMSG || error.code() == ENOEXEC) << error.message();
        EXPECT_EQ(error.message().rfind(p + ": ", 0), 0U) << error.message();
        EXPECT_EQ(error.message().find('\n'), std::string::npos);
        EXPECT_LT(error.message().size(), p.size() + 200);
      }
    }
    EXPECT_EQ(pool.counters().crashed, 0U) << "a file crashes LIEF";
    EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(200));
    return refused;
  }

  template <class T>
  static T* at(std::string& bytes, std::size_t offset) {
    return reinterpret_cast<T*>(bytes.data() + offset);
  }
  static std::vector<Elf64_Phdr*> segments(std::string& bytes, std::uint32_t type) {
    std::vector<Elf64_Phdr*> found;
    auto* header = at<Elf64_Ehdr>(bytes, 0);
    for (unsigned i = 0; i < header->e_phnum; ++i)
      if (auto* s = at<Elf64_Phdr>(bytes, header->e_phoff) + i; s->p_type == type)
        found.push_back(s);
    return found;
  }
  /// The value of a dynamic entry.
  static std::uint64_t& dynamic(std::string& bytes, std::int64_t tag) {
    auto* entry = at<Elf64_Dyn>(bytes, segments(bytes, PT_DYNAMIC).front()->p_offset);
    while (entry->d_tag != tag) {
      if (entry->d_tag == DT_NULL) throw Error("", "no such tag");
      ++entry;
    }
    return entry->d_un.d_val;
  }
};

TEST_F(DamagedInput, truncated_anywhere_costs_one_error) {
  const auto whole = good();
  std::vector<std::string> corpus;
  for (std::size_t n = 0; n < 1024; n += 7) corpus.push_back(whole.substr(0, n));
  for (std::size_t n = 1024; n < whole.size(); n += 61) corpus.push_back(whole.substr(0, n));
  EXPECT_GT(read_all_of(corpus), corpus.size());  // most are refused with both details
}

TEST_F(DamagedInput, with_random_header_bytes_costs_one_error) {
  const auto whole = good();
  auto copy = whole;
  const auto dynamic_at = segments(copy, PT_DYNAMIC).front()->p_offset;
  const std::size_t text = whole.find("libgood.so.1");
  // The parts that are parsed: ELF header, program headers, tables before .text, PT_DYNAMIC.
  const std::vector<std::pair<std::size_t, std::size_t>> ranges = {
      {0, 64},
      {64, 64 + 11 * 56},
      {0, std::min<std::size_t>(text + 300, whole.size())},
      {dynamic_at, dynamic_at + 400}};
  // HEDDLE_FUZZ_SEED=n: another corpus, ten times as large.
  const char* seed = std::getenv("HEDDLE_FUZZ_SEED");
  std::mt19937 random(seed == nullptr ? 1U : static_cast<unsigned>(std::atol(seed)));
  std::vector<std::string> corpus;
  for (int i = 0; i < (seed == nullptr ? 3000 : 30000); ++i) {
    auto mutant = whole;
    const auto& [from, to] = ranges[random() % ranges.size()];
    for (auto n = 1 + random() % 6; n > 0; --n) {
      const auto offset = from + random() % (to - from);
      static constexpr std::array<unsigned char, 6> kNasty = {0, 1, 0x7F, 0x80, 0xFE, 0xFF};
      mutant[offset] =
          static_cast<char>(random() % 2 ? random() : kNasty[random() % kNasty.size()]);
    }
    corpus.push_back(std::move(mutant));
  }
  EXPECT_GT(read_all_of(corpus), 500U);
}

TEST_F(DamagedInput, with_invalid_version_tables_costs_one_error) {
  const auto whole = good();
  std::vector<std::string> corpus;
  const auto with = [&](const std::function<void(std::string&)>& change) {
    auto mutant = whole;
    change(mutant);
    corpus.push_back(std::move(mutant));
  };
  // Low addresses are file offsets in a small library's first PT_LOAD.
  for (const std::uint32_t link : {1U, 2U, 16U, 0U, 0xFFFF'FFFFU, 0xFFFF'FFF0U, 0x7FFF'FFFFU})
    for (const std::int64_t tag : {DT_VERNEED, DT_VERDEF})
      for (const std::size_t field : {0U, 2U, 4U, 8U, 12U, 16U, 24U, 28U, 32U})
        with([&](std::string& m) { std::memcpy(m.data() + dynamic(m, tag) + field, &link, 4); });
  for (const std::int64_t tag : {DT_VERNEEDNUM, DT_VERDEFNUM, DT_STRSZ, DT_SYMENT})
    for (const std::uint64_t value :
         {std::uint64_t{0}, std::uint64_t{0xFFFF'FFFF}, ~std::uint64_t{0}})
      with([&](std::string& m) { dynamic(m, tag) = value; });
  // DT_HASH: numbers of buckets and chains; DT_GNU_HASH: words of the Bloom filter.
  for (const std::int64_t tag : {DT_HASH, DT_GNU_HASH})
    for (const std::size_t field : {0U, 4U, 8U, 12U})
      with([&](std::string& m) { *at<std::uint32_t>(m, dynamic(m, tag) + field) = 0xFFFF'FFF0; });
  EXPECT_GT(read_all_of(corpus), 20U);
}

TEST_F(DamagedInput, of_other_machines_and_types_has_partial_facts) {
  const auto whole = good();
  CachedFacts pool(options());
  const auto facts_of = [&](const char* name, const std::function<void(Elf64_Ehdr&)>& change) {
    auto bytes = whole;
    change(*at<Elf64_Ehdr>(bytes, 0));
    return pool.facts(write(name, bytes), FactsDetail::loader);
  };
  const auto arm = facts_of("arm", [](auto& h) { h.e_machine = EM_AARCH64; });
  ASSERT_TRUE(arm);
  EXPECT_EQ(arm->elf.machine, EM_AARCH64);
  const auto core = facts_of("core", [](auto& h) { h.e_type = ET_CORE; });
  ASSERT_TRUE(core);
  EXPECT_EQ(core->elf.type, ET_CORE);
  EXPECT_FALSE(core->elf.dynamic);
  EXPECT_FALSE(facts_of("class", [](auto& h) { h.e_ident[EI_CLASS] = 7; }));
  EXPECT_FALSE(facts_of("data", [](auto& h) { h.e_ident[EI_DATA] = 0; }));

  const auto object =
      value_or_throw(pool.facts(build("plain.o", "int x;", {"-c"}), FactsDetail::symbols));
  EXPECT_EQ(object.elf.type, ET_REL);
  EXPECT_FALSE(object.elf.dynamic);
  const auto narrow =
      pool.facts(build("lib32.so", "",
                       {"-shared", "-nostdlib", "-Wl,-m,elf_i386", "-Wl,--format=binary",
                        write("blob", "x"), "-Wl,--format=default", "-m32"}),
                 FactsDetail::loader);
  ASSERT_TRUE(narrow) << narrow.error().message();
  EXPECT_EQ(narrow->elf.elf_class, ELFCLASS32);
  EXPECT_EQ(narrow->elf.machine, EM_386);
}

}  // namespace
}  // namespace heddle
