// SPDX-License-Identifier: MIT
#pragma once

#include <elf.h>

#include <bit>
#include <cstdint>
#include <type_traits>

namespace heddle {

/// The structures of one ELF class.
struct Elf64Layout {
  using Ehdr = Elf64_Ehdr;
  using Phdr = Elf64_Phdr;
  using Shdr = Elf64_Shdr;
  using Dyn = Elf64_Dyn;
  using Sym = Elf64_Sym;
  using bloom_word = std::uint64_t;  ///< in DT_GNU_HASH
  static constexpr std::uint64_t tag_mask = ~std::uint64_t{0};
};
struct Elf32Layout {
  using Ehdr = Elf32_Ehdr;
  using Phdr = Elf32_Phdr;
  using Shdr = Elf32_Shdr;
  using Dyn = Elf32_Dyn;
  using Sym = Elf32_Sym;
  using bloom_word = std::uint32_t;
  static constexpr std::uint64_t tag_mask = 0xFFFF'FFFF;  ///< d_tag is signed
};

/// Converts between this machine's numbers and a file's.
struct ElfNumber {
  bool swapped = false;

  template <class T>
  T operator()(T value) const {
    using U = std::make_unsigned_t<T>;
    if (!swapped) return value;
    const auto bits = static_cast<U>(value);
    if constexpr (sizeof(U) == 1) return value;
    if constexpr (sizeof(U) == 2) return static_cast<T>(__builtin_bswap16(bits));
    if constexpr (sizeof(U) == 4) return static_cast<T>(__builtin_bswap32(bits));
    if constexpr (sizeof(U) == 8) return static_cast<T>(__builtin_bswap64(bits));
  }
  template <class T>
  void set(T& field, std::uint64_t value) const {
    field = (*this)(static_cast<T>(value));
  }
};

}  // namespace heddle
