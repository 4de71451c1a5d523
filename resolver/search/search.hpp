// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "resolver/search/world.hpp"

namespace heddle {

/// ld.so of this machine's 64-bit programs, as the processor's ABI names it.
#if defined(__aarch64__)
inline constexpr char kNativeLoader[] = "/lib/ld-linux-aarch64.so.1";
#else
inline constexpr char kNativeLoader[] = "/lib64/ld-linux-x86-64.so.2";
#endif

/// The properties of a loader: from the strings of the ld.so file that PT_INTERP names (which is
/// never run) and from this CPU.
struct LoaderProfile {
  std::string interpreter = kNativeLoader;
  std::string soname = "ld-linux-x86-64.so.2";
  int glibc_minor = 36;  ///< 2.N
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

/// The environment's part. Bytes as in the variables.
struct SearchOptions {
  std::string ld_library_path;
  std::string ld_preload;
  std::string hwcaps_tunable;  ///< glibc.cpu.hwcaps in GLIBC_TUNABLES: "-AVX2,-BMI1"
  bool explain = false;        ///< fill Closure::searches
};

/// How ld.so found a library.
enum class FoundBy : std::uint8_t {
  program,  ///< the root itself
  preload,  ///< LD_PRELOAD or /etc/ld.so.preload
  rpath,
  runpath,
  ld_library_path,
  cache,         ///< ld.so.cache
  default_path,  ///< the loader's built-in directories
  path,          ///< the name had a slash
  interpreter,   ///< ld.so itself, mapped by the kernel
};
/// `preload`, `rpath`, ... `default` as the JSON spells them.
const char* to_string(FoundBy found_by);

/// ld.so's system calls during its searches, for libraries and directories.
struct ProbeCount {
  std::uint64_t opens_failed = 0;
  std::uint64_t opens_done = 0;
  std::uint64_t stats_failed = 0;  ///< stat(2) of directories after a miss (dl-load.c, open_path)
  std::uint64_t stats_done = 0;
  std::uint64_t failed() const { return opens_failed + stats_failed; }
};

/// One file mapped into the process.
struct LoadedObject {
  std::string path;  ///< as ld.so spells it (l_name): not resolved
  FileFacts file;
  FoundBy found_by = FoundBy::program;
  /// Index of the object whose search directories were used, for rpath and runpath.
  std::optional<std::size_t> searched_by;
  std::optional<std::size_t> needed_by;  ///< first requester; nullopt for the root and preloads
  std::string requested_as;              ///< the name that first led here, tokens expanded
  /// Every name that this process requested it by: sonames, aliases, paths.
  std::vector<std::string> names;
  /// The objects of its dependencies, in the file's order (an index may repeat).
  std::vector<std::size_t> needs;
  /// A filtee of the root itself (a library loaded as a program): ld.so chains it ahead of the
  /// root, so that LD_TRACE_LOADED_OBJECTS does not print it. At the end of Closure::objects.
  bool before_program = false;
};

/// A dependency without which the program does not start; once for each object that needs it.
/// Optional ones (DT_AUXILIARY, LD_PRELOAD) are in Closure::warnings.
struct MissingLibrary {
  std::string name;
  std::size_t needed_by = 0;  ///< index into Closure::objects
  std::string reason;         ///< "not found", or what is wrong with the file that was
};

/// One probe of a search, for `why`.
struct Probe {
  enum class Outcome : std::uint8_t {
    found,
    missing,
    no_directory,
    wrong_class,
    unreadable,
    not_elf,
    in_system_dir
  };
  std::string path;
  FoundBy by = FoundBy::path;
  std::size_t searched_by = 0;  ///< object whose RPATH/RUNPATH lists it; the requester else
  Outcome outcome = Outcome::missing;
};
const char* to_string(Probe::Outcome outcome);

/// One search for one name. A name already loaded makes no search.
struct Search {
  std::string name;
  std::size_t requester = 0;
  std::optional<std::size_t> result;  ///< object found
  std::vector<Probe> probes;
};

/// All that ld.so maps for one program, in the order of LD_TRACE_LOADED_OBJECTS (breadth first;
/// objects[0] is the program). ld.so itself is where something needs it; up to glibc 2.40 it is
/// left out when nothing does.
struct Closure {
  std::vector<LoadedObject> objects;
  std::vector<MissingLibrary> missing;
  ProbeCount probes;
  std::vector<Search> searches;  ///< filled only when SearchOptions::explain
  std::vector<std::string> warnings;
};

/// This x86-64 CPU as glibc's loader classifies it (sysdeps/x86/cpu-features.c, get-isa-level.h),
/// by cpuid and XCR0: a feature counts only when the kernel saves its registers.
struct CpuLevels {
  /// GNU_PROPERTY_X86_ISA_1_BASELINE, _V2, _V3, _V4 as bits 0 to 3; 0 on another architecture.
  std::uint32_t isa_levels = 0;
  std::uint32_t hwcaps_levels = 0;  ///< likewise: those whose glibc-hwcaps directory is searched
  bool haswell = false;             ///< Intel with AVX2, BMI and so on: AT_PLATFORM is overridden
  bool xeon_phi = false;
  bool avx512_1 = false;  ///< the legacy capability of that name
};
/// The tunable takes features away from all but isa_levels, which are computed before it is read.
CpuLevels read_cpu_levels(std::string_view hwcaps_tunable = {});

/// Reads the profile for programs whose PT_INTERP is `interpreter`. Fails when that file is no
/// glibc loader (musl: ENOTSUP), naming it.
Result<LoaderProfile> read_loader_profile(World& world, const std::string& interpreter,
                                          std::string_view hwcaps_tunable = {});

/// `program`: a path as it would be executed. Fails only when the program itself cannot be read or
/// is no dynamic ELF file (ENOEXEC); missing libraries are listed in the result. Never executes
/// anything. `loader` as read_loader_profile gave it.
Result<Closure> resolve(World& world, const LoaderProfile& loader, const std::string& program,
                        const SearchOptions& options);

/// The names in LD_PRELOAD, in order: split at blanks and colons (glibc elf/rtld.c,
/// handle_preload_list).
std::vector<std::string> split_preload_variable(std::string_view text);

/// The names in /etc/ld.so.preload, in order: split at blanks, tabs, newlines and colons, comments
/// taken out as dl_main does it.
std::vector<std::string> split_preload_file(std::string text);

}  // namespace heddle
