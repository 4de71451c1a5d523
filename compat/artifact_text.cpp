// SPDX-License-Identifier: MIT
#include "compat/artifact_text.hpp"

#include <elf.h>
#include <fmt/format.h>

#include "compat/elf_notes.hpp"

namespace heddle::compat {

const char* dependency_kind_name(Dependency::Kind kind) {
  switch (kind) {
    case Dependency::Kind::needed:
      return "needed";
    case Dependency::Kind::auxiliary:
      return "auxiliary";
    case Dependency::Kind::filter:
      return "filter";
  }
  return "needed";
}

std::optional<Dependency::Kind> dependency_kind(std::string_view name) {
  for (const auto kind :
       {Dependency::Kind::needed, Dependency::Kind::auxiliary, Dependency::Kind::filter})
    if (name == dependency_kind_name(kind)) return kind;
  return std::nullopt;
}

std::string machine_name(std::uint16_t machine) {
  switch (machine) {
    case EM_X86_64:
      return "x86_64";
    case EM_386:
      return "i686";
    case EM_AARCH64:
      return "aarch64";
    case EM_ARM:
      return "arm";
    case EM_PPC64:
      return "ppc64";
    case EM_S390:
      return "s390x";
    case EM_RISCV:
      return "riscv";
    default:
      return fmt::format("EM_{}", machine);
  }
}

std::optional<unsigned> isa_level_bit(std::string_view name) {
  for (unsigned bit = 0; bit < 32; ++bit)
    if (name == isa_level_name(bit)) return bit;
  return std::nullopt;
}

}  // namespace heddle::compat
