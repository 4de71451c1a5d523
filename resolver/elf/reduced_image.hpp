// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/result.hpp"
#include "resolver/elf/elf_facts.hpp"
#include "resolver/elf/file_bytes.hpp"

namespace heddle {

// LIEF parses all there is: sections, relocations, every symbol; 0.9 takes 137 ms for libmpich's
// 41 MB, and crashes on a few damaged bytes. The loader needs a thousandth of that. So LIEF is
// given a small ELF file made of just the parts that the program headers and PT_DYNAMIC refer to,
// copied as they are, at new offsets, each offset, count and chain having been checked before. What
// LIEF 0.9 would get wrong is also kept from it: tables of more than 1000 dynamic entries (a series
// of images), symbol counts (a DT_GNU_HASH that says the number), notes outside the first PT_NOTE.

struct ReducedElf {
  /// The first holds everything but the dependencies (DT_NEEDED, ...) that did not fit; those
  /// follow in further images, in order.
  std::vector<std::vector<std::uint8_t>> images;
  /// To compare with what LIEF found.
  std::size_t dependencies = 0;
  /// ElfFacts's of these names: LIEF tells nothing of places in the file.
};

/// FactsDetail::loader: of the symbols only those that ElfFacts::imports_* ask for are kept.
/// Fails with ENOEXEC for what is not ELF, EBADMSG with the reason for what is damaged.
Result<ReducedElf> reduce_elf(const FileBytes& file, FactsDetail detail);

}  // namespace heddle
