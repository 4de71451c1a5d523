// SPDX-License-Identifier: MIT
#pragma once

#include "resolver/elf/loader_facts.hpp"

namespace heddle {

/// To be called once before the sandbox closes: LIEF's logger sets itself up on first use.
void prepare_lief();

/// Reads the dynamic symbols of `elf` with LIEF into exported_symbols and undefined_symbols of
/// `facts`. LIEF may crash or loop on damaged bytes: for inside the sandbox only. Failure: EBADMSG,
/// also when LIEF finds another number of symbols than `table` has.
Result<void> read_symbols_with_lief(const ElfFile& elf, const SymbolTable& table, ElfFacts& facts);

}  // namespace heddle
