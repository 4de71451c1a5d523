// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "resolver/elf/elf_facts.hpp"

namespace heddle::compat {

/// docs/formats/artifact.md; a reader refuses any other.
inline constexpr int kArtifactFormat = 1;

/// `needed`, `auxiliary`, `filter`, as the artifact has them, and back.
const char* dependency_kind_name(Dependency::Kind kind);
std::optional<Dependency::Kind> dependency_kind(std::string_view name);

/// EM_* as uname(2) or the toolchain spells it: "x86_64", "aarch64"; "EM_<n>" for others.
std::string machine_name(std::uint16_t machine);

/// The bit of ElfNotes behind isa_level_name()'s text.
std::optional<unsigned> isa_level_bit(std::string_view name);

}  // namespace heddle::compat
