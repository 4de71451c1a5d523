// SPDX-License-Identifier: MIT
#pragma once

#include "base/content_hash.hpp"
#include "resolver/elf/elf_facts.hpp"
#include "resolver/elf/worker_protocol.hpp"

namespace heddle {

struct ReadElf {
  ContentHash hash;
  ElfFacts facts;
};

/// Reads the file behind `fd`, `size` bytes long: its hash, and its facts through LIEF. For inside
/// the sandbox. Errors have the codes of FactsSource::facts and no path.
Result<ReadElf> read_elf(int fd, std::uint64_t size, FactsDetail detail, ParseMode mode);

}  // namespace heddle
