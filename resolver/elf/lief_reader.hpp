// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <vector>

#include "base/result.hpp"
#include "resolver/elf/elf_facts.hpp"

namespace heddle {

/// To be called once before the sandbox closes: LIEF's logger sets itself up on first use.
void prepare_lief();

enum class ImageKind : std::uint8_t {
  whole_file,
  reduced,  ///< made by reduce_elf(): no sections, symbols counted by DT_GNU_HASH
};

/// What LIEF reads in an ELF image. It may crash or loop on damaged bytes: only for the sandbox.
/// Errors are EBADMSG, without a path.
Result<ElfFacts> read_with_lief(const std::vector<std::uint8_t>& image, ImageKind kind,
                                FactsDetail detail);

}  // namespace heddle
