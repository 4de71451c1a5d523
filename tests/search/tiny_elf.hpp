// SPDX-License-Identifier: MIT
#pragma once

#include <elf.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "resolver/elf/elf_facts.hpp"

namespace heddle::test {

#if defined(__aarch64__)
inline constexpr std::uint16_t kNativeMachine = EM_AARCH64;
#else
inline constexpr std::uint16_t kNativeMachine = EM_X86_64;
#endif

/// An ELF file as the loader sees it, written in microseconds: one segment, no sections or symbols.
/// The kernel starts such a program (it exits with 0) and ld.so maps such a library. Other values
/// than the defaults make files that ld.so skips or refuses.
struct TinyElf {
  std::uint8_t elf_class = ELFCLASS64;
  std::uint8_t data_encoding = ELFDATA2LSB;
  std::uint8_t os_abi = ELFOSABI_SYSV;
  std::uint8_t abi_version = 0;
  std::uint16_t type = ET_DYN;
  std::uint16_t machine = EM_X86_64;
  bool dynamic = true;
  std::optional<std::string> interp;
  std::optional<std::string> soname;
  std::vector<Dependency> dependencies;
  std::optional<std::string> rpath;
  std::optional<std::string> runpath;
  std::uint64_t flags_1 = 0;

  std::string bytes() const;
};

/// Writes the file, mode 0755, making its directory. Throws heddle::Error.
void write_elf(const std::string& path, const TinyElf& elf);

}  // namespace heddle::test
