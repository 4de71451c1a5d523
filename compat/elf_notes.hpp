// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <string>

#include "base/result.hpp"

namespace heddle::compat {

/// What an ELF file's notes ask of CPU and kernel.
struct ElfNotes {
  /// GNU_PROPERTY_X86_ISA_1_NEEDED: bit n asks for x86-64-v(n+1), bit 0 for the baseline.
  std::uint32_t isa_needed = 0;
  /// GNU_PROPERTY_X86_ISA_1_USED: the file has code for these, and may choose at run time.
  std::uint32_t isa_used = 0;
  std::string kernel;  ///< NT_GNU_ABI_TAG for Linux, "3.2.0"; empty: none
  auto operator<=>(const ElfNotes&) const = default;
};

/// Reads them from the program headers of the open file `fd`, called `path`. Little-endian files
/// only: others, and damaged notes, have none. Fails only when it is no ELF file.
Result<ElfNotes> read_elf_notes(int fd, const std::string& path);

/// "x86-64-v3" for a bit of ElfNotes; "x86-64" for bit 0.
std::string isa_level_name(unsigned bit);
/// The highest level of a mask, as isa_level_name() spells it; empty for none.
std::string highest_isa_level(std::uint32_t mask);

}  // namespace heddle::compat
