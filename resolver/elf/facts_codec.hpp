// SPDX-License-Identifier: MIT
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "resolver/elf/elf_facts.hpp"

namespace heddle {

/// Changes whenever encode() does: part of the workers' greeting and of the cache's format.
inline constexpr std::uint32_t kFactsCodecVersion = 2;

/// Facts as bytes, for the socket of a worker and for the cache.
std::string encode_facts(const ElfFacts& facts);

/// The facts that encode_facts() was given. The bytes are not trusted: nullopt for everything that
/// is not its output, strings with a NUL inside included (no ELF string has one).
std::optional<ElfFacts> decode_facts(std::string_view bytes);

}  // namespace heddle
