// SPDX-License-Identifier: MIT
#pragma once

#include <string>
#include <string_view>

#include "base/fd.hpp"
#include "resolver/elf/elf_facts.hpp"

namespace heddle::test {

/// The loader's facts, read in this process, unhashed.
class PlainFacts final : public FactsSource {
 public:
  Result<FileFacts> facts(const std::string& path, FactsDetail detail) override;
  void prefetch(const std::vector<std::string>&, FactsDetail) override {}
  Fd root;  ///< if valid, paths are relative to it
};

/// The loader's facts in an ELF file's bytes.
Result<ElfFacts> parse_elf(std::string_view content);

}  // namespace heddle::test
