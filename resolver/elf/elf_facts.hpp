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

/// One name@version that a file needs from another, or defines itself.
struct VersionNeed {
  std::string file;  ///< the soname it is wanted from (vn_file)
  std::string version;
  bool weak = false;  ///< VER_FLG_WEAK: ld.so does not insist
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

/// What the loader and the policy ask of an ELF file. A value; strings are bytes as in the file.
/// Raw numbers are the ELF specification's (EM_*, ET_*, ELFOSABI_*, ELFCLASS*).
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
  /// Only when asked for (FactsDetail::symbols), else empty.
  std::vector<DynamicSymbol> exported_symbols;
  std::vector<DynamicSymbol> undefined_symbols;
  auto operator<=>(const ElfFacts&) const = default;

  bool is_program() const { return interp.has_value(); }
};

enum class FactsDetail : std::uint8_t { loader, symbols };

template <class T, class Record>
concept IsRecord = std::same_as<std::remove_const_t<T>, Record>;

/// Of the encoding below: changes whenever a field of ElfFacts does.
inline constexpr std::uint32_t kFactsVersion = 3;

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

/// Whether facts that were decoded are such as a reader of ELF files gives: ELF strings have no NUL
/// inside, and enums have their values.
bool is_sound(const ElfFacts& facts);

/// An ELF file's facts with the identity and content they were read from (one fstat and one read of
/// the same open file). The hash is that of the whole file.
struct FileFacts {
  FileStamp stamp;
  std::uint32_t mode = 0;  ///< st_mode
  ContentHash hash;
  ElfFacts elf;
};

/// Where facts come from: the worker pool with its cache in programs, a table in tests.
/// Not for concurrent use; each program owns one.
class FactsSource {
 public:
  virtual ~FactsSource() = default;
  /// Follows symbolic links. Failure is about this file alone: code() is the errno of open(2) or
  /// fstat(2), ENOEXEC for "not an ELF file", EBADMSG for a damaged one (the worker crashed, hung
  /// or refused it), EPROTO when no reader can be started at all (the file is not to blame); every
  /// message names the path.
  virtual Result<FileFacts> facts(const std::string& path, FactsDetail detail) = 0;
  /// Hint: these will be asked for soon. Starts reading them in parallel, returns at once, never
  /// fails.
  virtual void prefetch(const std::vector<std::string>& paths, FactsDetail detail) = 0;
};

}  // namespace heddle
