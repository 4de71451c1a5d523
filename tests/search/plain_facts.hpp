// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/fd.hpp"
#include "resolver/elf/facts_source.hpp"

namespace heddle::test {

/// Facts straight out of the program headers and PT_DYNAMIC: enough for the search, quick, and a
/// second opinion to LIEF's. Little-endian files of either class.
class PlainFacts final : public FactsSource {
 public:
  Result<FileFacts> facts(const std::string& path, FactsDetail detail) override;
  void prefetch(const std::vector<std::string>& paths, FactsDetail) override {
    prefetched += paths.size();
  }
  Fd root;  ///< valid: paths are below it
  std::size_t read = 0;
  std::size_t prefetched = 0;
};

/// The facts in an ELF file's bytes; ENOEXEC for no ELF file, EBADMSG for a damaged one.
Result<ElfFacts> parse_elf(std::string_view bytes, const std::string& path);

}  // namespace heddle::test
