// SPDX-License-Identifier: MIT
#pragma once

#include <concepts>
#include <cstdint>
#include <optional>
#include <string>
#include <type_traits>
#include <vector>

#include "base/content_hash.hpp"
#include "base/file_stamp.hpp"
#include "base/result.hpp"

namespace heddle {

/// One name@version that a file needs from another.
struct VersionNeed {
  std::string file;  ///< the other file's soname (vn_file)
  std::string version;
  bool weak = false;  ///< VER_FLG_WEAK: no error in ld.so if missing
  auto operator<=>(const VersionNeed&) const = default;
};

struct DynamicSymbol {
  std::string name;
  std::string version;  ///< empty: unversioned
  bool weak = false;
  auto operator<=>(const DynamicSymbol&) const = default;
};

/// One DT_NEEDED, DT_AUXILIARY or DT_FILTER entry; ld.so takes them in the file's order.
struct Dependency {
  enum class Kind : std::uint8_t { needed, auxiliary, filter };
  Kind kind = Kind::needed;
  std::string name;  ///< as written, dynamic string tokens not expanded
  auto operator<=>(const Dependency&) const = default;
};

/// PT_TLS of a file. Bytes.
struct TlsSegment {
  std::uint64_t size = 0;
  std::uint64_t align = 0;
  auto operator<=>(const TlsSegment&) const = default;
};

/// What the loader and the policy need to know of an ELF file. Strings are bytes as in the file,
/// raw numbers the ELF specification's (EM_*, ET_*, ELFOSABI_*, ELFCLASS*).
struct ElfFacts {
  std::uint8_t elf_class = 0;
  std::uint8_t data_encoding = 0;  ///< ELFDATA2LSB or ELFDATA2MSB
  std::uint8_t os_abi = 0;
  std::uint8_t abi_version = 0;
  std::uint16_t type = 0;
  std::uint16_t machine = 0;
  std::optional<std::string> interp;  ///< PT_INTERP
  bool dynamic = false;               ///< has PT_DYNAMIC
  std::optional<std::string> soname;
  std::vector<Dependency> dependencies;
  std::optional<std::string> rpath;    ///< DT_RPATH, also when RUNPATH makes ld.so ignore it
  std::optional<std::string> runpath;  ///< DT_RUNPATH
  std::uint64_t flags = 0;             ///< DT_FLAGS (DF_STATIC_TLS = 0x10)
  std::uint64_t flags_1 = 0;           ///< DT_FLAGS_1 (DF_1_NODEFLIB = 0x800)
  std::optional<TlsSegment> tls;
  std::vector<VersionNeed> version_needs;
  std::vector<std::string> version_definitions;  ///< without the base definition (the soname)
  bool imports_dladdr = false;  ///< dladdr or dladdr1 undefined: may look for files beside itself
  bool imports_dlopen = false;  ///< dlopen or dlmopen undefined
  std::string build_id;         ///< lower-case hex, empty: none
  /// Only with FactsDetail::symbols, else empty.
  std::vector<DynamicSymbol> exported_symbols;
  std::vector<DynamicSymbol> undefined_symbols;
  auto operator<=>(const ElfFacts&) const = default;

  bool is_program() const { return interp.has_value(); }
};

enum class FactsDetail : std::uint8_t { loader, symbols };

template <class T, class Record>
concept IsRecord = std::same_as<std::remove_const_t<T>, Record>;

/// Of the encoding below.
inline constexpr std::uint32_t kFactsVersion = 4;

// The fields in the order of their encoding (base/coder.hpp).
template <class Coder, IsRecord<VersionNeed> T>
void fields(Coder& coder, T& need) {
  coder(need.file, need.version, need.weak);
}
template <class Coder, IsRecord<DynamicSymbol> T>
void fields(Coder& coder, T& symbol) {
  coder(symbol.name, symbol.version, symbol.weak);
}
template <class Coder, IsRecord<Dependency> T>
void fields(Coder& coder, T& dependency) {
  coder(dependency.kind, dependency.name);
}
template <class Coder, IsRecord<TlsSegment> T>
void fields(Coder& coder, T& tls) {
  coder(tls.size, tls.align);
}
template <class Coder, IsRecord<ElfFacts> T>
void fields(Coder& coder, T& f) {
  coder(f.elf_class, f.data_encoding, f.os_abi, f.abi_version, f.type, f.machine, f.interp,
        f.dynamic, f.soname, f.dependencies, f.rpath, f.runpath, f.flags, f.flags_1, f.tls,
        f.version_needs, f.version_definitions, f.imports_dladdr, f.imports_dlopen, f.build_id,
        f.exported_symbols, f.undefined_symbols);
}

/// Whether decoded facts are valid: no string has a NUL inside, enums are in range.
bool is_sound(const ElfFacts& facts);

/// An ELF file's facts with its identity and content; stamp and facts are of the same open file.
struct FileFacts {
  FileStamp stamp;
  std::uint32_t mode = 0;  ///< st_mode
  ContentHash hash;        ///< of the whole file
  ElfFacts elf;
};

/// The worker pool with its cache in programs, a table in tests. Not for concurrent use.
class FactsSource {
 public:
  virtual ~FactsSource() = default;
  /// Follows symbolic links. Failure is about this file alone: code() is the errno of open(2) or
  /// fstat(2), ENOEXEC for "not an ELF file", EBADMSG for a damaged one (the worker crashed, hung
  /// or refused it), EPROTO when no reader can be started at all (the file is not to blame); every
  /// message names the path.
  virtual Result<FileFacts> facts(const std::string& path, FactsDetail detail) = 0;
  /// A hint: starts reading files in parallel that facts() will soon be called for. Returns at
  /// once.
  virtual void prefetch(const std::vector<std::string>& paths, FactsDetail detail) = 0;
};

}  // namespace heddle
