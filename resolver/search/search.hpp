// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "resolver/search/closure.hpp"
#include "resolver/search/world.hpp"

namespace heddle {

/// The loader whose behaviour is predicted: read out of the ld.so file that PT_INTERP names (its
/// strings; it is never run) and from this CPU.
struct LoaderProfile {
  std::string interpreter = "/lib64/ld-linux-x86-64.so.2";
  std::string soname = "ld-linux-x86-64.so.2";
  int glibc_minor = 36;  ///< 2.N; decides which hwcaps rules hold
  std::string cache_path = "/etc/ld.so.cache";
  std::string preload_path = "/etc/ld.so.preload";
  std::vector<std::string> default_directories;  ///< with trailing '/', in order
  std::string platform = "x86_64";               ///< AT_PLATFORM: $PLATFORM and legacy directories
  std::string lib = "lib/x86_64-linux-gnu";      ///< $LIB
  std::vector<std::string> hwcaps;               ///< glibc-hwcaps levels of this CPU, best first
  std::vector<std::string>
      legacy_hwcaps;              ///< legacy subdirectories incl. tls combinations, in order
  std::uint64_t legacy_bits = 0;  ///< dl_hwcap & its mask: which legacy entries of the cache serve
  std::uint32_t isa_levels = 0;  ///< GNU_PROPERTY_X86_ISA_1_*: the levels cache entries may ask for
  std::uint8_t elf_class = 2;    ///< ELFCLASS64
  std::uint16_t machine = 62;    ///< EM_X86_64
};

/// What the environment adds. Bytes as in the variables.
struct SearchOptions {
  std::string ld_library_path;
  std::string ld_preload;
  bool secure = false;   ///< as for AT_SECURE programs (setuid and the like): most of it is ignored
  bool explain = false;  ///< keep every probe (Closure::searches)
};

/// Reads the profile for programs whose PT_INTERP is `interpreter`. Fails when that file is no
/// glibc loader (musl: ENOTSUP), naming it.
Result<LoaderProfile> read_loader_profile(World& world, const std::string& interpreter);

/// What ld.so maps for `program` (a path as it would be executed), in its order. Fails only when
/// the program itself cannot be read or is no dynamic ELF file (ENOEXEC); missing libraries are
/// listed in the result. Never executes anything. `loader` as read_loader_profile gave it.
Result<Closure> resolve(World& world, const LoaderProfile& loader, const std::string& program,
                        const SearchOptions& options);

/// The names in LD_PRELOAD, in order: split at blanks and colons (glibc elf/rtld.c,
/// handle_preload_list). A secure program takes no name with a slash.
std::vector<std::string> split_preload_variable(std::string_view text, bool secure);

/// The names in /etc/ld.so.preload, in order: split at blanks, tabs, newlines and colons, comments
/// taken out as dl_main does it.
std::vector<std::string> split_preload_file(std::string text);

}  // namespace heddle
