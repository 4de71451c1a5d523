// SPDX-License-Identifier: MIT
// The reduced image must not change what LIEF says: both ways, and GNU readelf as a third opinion,
// over the files of this machine.
#include <elf.h>

#include <algorithm>
#include <filesystem>
#include <random>
#include <sstream>

#include "tests/elf/elf_fixture.hpp"
#include "tests/elf/facts_print.hpp"

namespace heddle {
namespace {

namespace fs = std::filesystem;

/// ELF files of the system, the same ones on each run; HEDDLE_ALL_FILES=1: every one.
std::vector<std::string> system_files(std::size_t count, std::uintmax_t max_size) {
  std::vector<std::string> files;
  for (const char* dir : {"/usr/lib", "/usr/bin", "/usr/libexec"}) {
    std::error_code error;
    for (auto it = fs::recursive_directory_iterator(
             dir, fs::directory_options::skip_permission_denied, error);
         it != fs::recursive_directory_iterator(); it.increment(error)) {
      if (error || !it->is_regular_file(error) || it->is_symlink(error)) continue;
      if (it->file_size(error) > max_size || it->path().extension() == ".o") continue;
      char magic[4] = {};
      std::ifstream(it->path(), std::ios::binary).read(magic, 4);
      if (std::string_view(magic, 4) ==
          "\x7f"
          "ELF")
        files.push_back(it->path());
    }
  }
  std::sort(files.begin(), files.end());
  if (std::getenv("HEDDLE_ALL_FILES") != nullptr) return files;
  std::shuffle(files.begin(), files.end(), std::mt19937(1));  // NOLINT: the same every time
  if (files.size() > count) files.resize(count);
  return files;
}

class ReducedImage : public ElfTest, public ::testing::WithParamInterface<FactsDetail> {};

TEST_P(ReducedImage, says_what_the_whole_file_says) {
  const auto detail = GetParam();
  const bool all = std::getenv("HEDDLE_ALL_FILES") != nullptr;
  const auto files = system_files(300, all ? std::uintmax_t{1} << 30 : std::uintmax_t{1} << 20);
  WorkerPool reduced(options(ParseMode::reduced_only));
  WorkerPool full(options(ParseMode::full_only));
  reduced.prefetch(files, detail);
  full.prefetch(files, detail);
  std::size_t same = 0;
  for (const auto& file : files) {
    const auto a = reduced.facts(file, detail);
    const auto b = full.facts(file, detail);
    if (!a) {
      ADD_FAILURE() << a.error().message() << (b ? "" : "; whole: " + b.error().message());
      continue;
    }
    if (!b) {
      ADD_FAILURE() << b.error().message();
      continue;
    }
    if (a->elf == b->elf)
      ++same;
    else
      ADD_FAILURE() << file << ": " << first_difference(to_text(a->elf), to_text(b->elf));
    EXPECT_EQ(a->hash, b->hash);
  }
  std::printf("%zu of %zu files the same\n", same, files.size());
  EXPECT_EQ(reduced.counters().crashed, 0U);
}

INSTANTIATE_TEST_SUITE_P(Details, ReducedImage,
                         ::testing::Values(FactsDetail::loader, FactsDetail::symbols),
                         [](const auto& p) {
                           return p.param == FactsDetail::loader ? "loader" : "symbols";
                         });

}  // namespace
}  // namespace heddle
