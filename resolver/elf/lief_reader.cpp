// SPDX-License-Identifier: MIT
#include "resolver/elf/lief_reader.hpp"

// The one file that includes LIEF. Debian 12 has 0.9.0; what later versions changed (ParserConfig,
// result<> instead of exceptions, enum class members, pointers for references) is bridged here, by
// asking the headers and never by version number.
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wall"
#pragma GCC diagnostic ignored "-Wextra"
#pragma GCC diagnostic ignored "-Wshadow"
#pragma GCC diagnostic ignored "-Wconversion"
#pragma GCC diagnostic ignored "-Wold-style-cast"
#include <LIEF/ELF.hpp>
#include <LIEF/logging.hpp>
#if __has_include(<LIEF/ELF/ParserConfig.hpp>)
#include <LIEF/ELF/ParserConfig.hpp>
#define HEDDLE_LIEF_HAS_CONFIG 1
#endif
#pragma GCC diagnostic pop

#include <elf.h>

#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>

namespace heddle {
namespace {

namespace lief = LIEF::ELF;

/// Enum or number, of whatever type this LIEF has: all carry the ELF specification's values.
template <class T>
std::uint64_t raw(T value) {
  return static_cast<std::uint64_t>(value);
}

std::unique_ptr<lief::Binary> parse(const std::vector<std::uint8_t>& image, ImageKind kind) {
  // 0.9's COUNT_AUTO distrusts tables of more than 3000 symbols, and its COUNT_HASH reads only
  // DT_GNU_HASH (Parser.tcc, get_numberof_dynamic_symbols): so one way for each kind of image.
  constexpr int by_section = 1;
  constexpr int by_hash = 2;
  const int count = kind == ImageKind::reduced ? by_hash : by_section;
#ifdef HEDDLE_LIEF_HAS_CONFIG
  lief::ParserConfig config;
  config.parse_relocations = false;
  config.parse_overlay = false;
  config.count_mtd = static_cast<decltype(config.count_mtd)>(count);
  return lief::Parser::parse(image, config);
#else
  return lief::Parser::parse(image, "", static_cast<lief::DYNSYM_COUNT_METHODS>(count));
#endif
}

/// 0.9 gives the address's offset or throws, later versions give a result.
template <class Binary>
std::optional<std::uint64_t> offset_of(const Binary& binary, std::uint64_t address) {
  const auto offset = binary.virtual_address_to_offset(address);
  if constexpr (std::is_integral_v<std::remove_cv_t<decltype(offset)>>) {
    return offset;
  } else {
    if (!offset) return std::nullopt;
    return *offset;
  }
}

template <class T>
const T* pointer_to(const T& object) {
  return &object;
}
template <class T>
const T* pointer_to(const T* object) {
  return object;
}

template <class Note>
std::uint64_t note_type(const Note& note) {
  if constexpr (requires { note.original_type(); })
    return raw(note.original_type());
  else
    return raw(note.type());
}

/// LIEF reads a std::string off the image and may keep bytes beyond its NUL.
std::string c_string(const std::string& text) { return text.substr(0, text.find('\0')); }

/// The string at `offset` of DT_STRTAB, for tags that LIEF keeps as plain numbers.
std::string string_at(const std::vector<std::uint8_t>& image, std::uint64_t offset) {
  if (offset >= image.size()) throw std::out_of_range("a string lies beyond the file");
  const auto from = image.begin() + static_cast<std::ptrdiff_t>(offset);
  return std::string(from, std::find(from, image.end(), std::uint8_t{0}));
}

void read_header(const lief::Binary& binary, ElfFacts& facts) {
  const auto& header = binary.header();
  facts.elf_class = static_cast<std::uint8_t>(raw(header.identity_class()));
  facts.data_encoding = static_cast<std::uint8_t>(raw(header.identity_data()));
  facts.os_abi = static_cast<std::uint8_t>(raw(header.identity_os_abi()));
  facts.abi_version = header.identity()[EI_ABIVERSION];
  facts.type = static_cast<std::uint16_t>(raw(header.file_type()));
  facts.machine = static_cast<std::uint16_t>(raw(header.machine_type()));
}

void read_segments(const lief::Binary& binary, ElfFacts& facts) {
  for (const auto& segment : binary.segments()) {
    // Empty ones stand in files of debug information, and ld.so passes over them.
    const bool filled = segment.physical_size() > 0;
    if (raw(segment.type()) == PT_INTERP && filled) facts.interp = c_string(binary.interpreter());
    if (raw(segment.type()) == PT_DYNAMIC && filled) facts.dynamic = true;
    if (raw(segment.type()) == PT_TLS && !facts.tls)
      facts.tls = TlsSegment{segment.virtual_size(), segment.alignment()};
  }
}

/// As ld.so does (elf/get-dynamic-info.h): of tags that stand once, the last counts.
void read_dynamic(const lief::Binary& binary, const std::vector<std::uint8_t>& image,
                  ElfFacts& facts) {
  std::optional<std::uint64_t> strings;
  std::size_t count = 0;
  bool ended = false;
  for (const auto& entry : binary.dynamic_entries()) {
    if (raw(entry.tag()) == DT_STRTAB) strings = offset_of(binary, entry.value());
    ++count;
    ended |= raw(entry.tag()) == DT_NULL;
  }
  // Parser::NB_MAX_DYNAMIC_ENTRIES; only whole files get there (reduced_image.cpp).
  if (!ended && count >= 1000) throw std::length_error("LIEF does not read all of its entries");
  const auto plain_string = [&](const lief::DynamicEntry& entry) {
    if (!strings) throw std::out_of_range("there is no dynamic string table");
    return string_at(image, *strings + entry.value());
  };
  for (const auto& entry : binary.dynamic_entries()) {
    const auto tag = raw(entry.tag());
    if (tag == DT_NULL) break;  // LIEF goes on to the segment's end, ld.so does not
    if (const auto* library = dynamic_cast<const lief::DynamicEntryLibrary*>(&entry)) {
      if (tag == DT_NEEDED)
        facts.dependencies.push_back({Dependency::Kind::needed, c_string(library->name())});
    } else if (const auto* object = dynamic_cast<const lief::DynamicSharedObject*>(&entry)) {
      facts.soname = c_string(object->name());
    } else if (const auto* rpath = dynamic_cast<const lief::DynamicEntryRpath*>(&entry)) {
      facts.rpath = c_string(rpath->rpath());
    } else if (const auto* runpath = dynamic_cast<const lief::DynamicEntryRunPath*>(&entry)) {
      facts.runpath = c_string(runpath->runpath());
    } else if (tag == DT_AUXILIARY) {
      facts.dependencies.push_back({Dependency::Kind::auxiliary, plain_string(entry)});
    } else if (tag == DT_FILTER) {
      facts.dependencies.push_back({Dependency::Kind::filter, plain_string(entry)});
    }
    if (tag == DT_FLAGS) facts.flags = entry.value();
    if (tag == DT_FLAGS_1) facts.flags_1 = entry.value();
  }
}

/// Fills version lists; gives the names by their index in DT_VERSYM.
std::map<unsigned, std::string> read_versions(const lief::Binary& binary, ElfFacts& facts) {
  std::map<unsigned, std::string> names;
  for (const auto& need : binary.symbols_version_requirement())
    for (const auto& version : need.auxiliary_symbols()) {
      const std::string name = c_string(version.name());
      facts.version_needs.push_back(
          {c_string(need.name()), name, (version.flags() & VER_FLG_WEAK) != 0});
      names.emplace(version.other() & 0x7FFFU, name);
    }
  for (const auto& definition : binary.symbols_version_definition()) {
    std::optional<std::string> name;
    for (const auto& part : definition.symbols_aux())
      if (!name) name = c_string(part.name());  // the others are the versions it inherits
    if (!name) continue;
    names.emplace(definition.ndx() & 0x7FFFU, *name);
    if ((definition.flags() & VER_FLG_BASE) == 0) facts.version_definitions.push_back(*name);
  }
  return names;
}

void read_symbols(const lief::Binary& binary, FactsDetail detail,
                  const std::map<unsigned, std::string>& versions, ElfFacts& facts) {
  for (const auto& symbol : binary.dynamic_symbols()) {
    const std::string& name = symbol.name();
    const auto binding = raw(symbol.binding());
    const bool undefined = symbol.shndx() == SHN_UNDEF;
    if (name.empty() || binding == STB_LOCAL) continue;
    if (undefined) {
      facts.imports_dladdr |= name == "dladdr" || name == "dladdr1";
      facts.imports_dlopen |= name == "dlopen" || name == "dlmopen";
    }
    if (detail != FactsDetail::symbols) continue;
    const auto visibility = symbol.other() & 3U;
    if (!undefined && visibility != STV_DEFAULT && visibility != STV_PROTECTED) continue;
    unsigned index = VER_NDX_GLOBAL;
    if (symbol.has_version())
      if (const auto* version = pointer_to(symbol.symbol_version()))
        index = version->value() & 0x7FFFU;
    if (!undefined && index == VER_NDX_LOCAL) continue;
    const auto found = index > VER_NDX_GLOBAL ? versions.find(index) : versions.end();
    (undefined ? facts.undefined_symbols : facts.exported_symbols)
        .push_back(
            {name, found == versions.end() ? std::string() : found->second, binding == STB_WEAK});
  }
}

void read_build_id(const lief::Binary& binary, ElfFacts& facts) {
  for (const auto& note : binary.notes()) {
    if (c_string(note.name()) != "GNU" || note_type(note) != NT_GNU_BUILD_ID) continue;
    for (const unsigned byte : note.description()) {
      constexpr const char* digits = "0123456789abcdef";
      facts.build_id += digits[byte >> 4];
      facts.build_id += digits[byte & 15];
    }
    return;
  }
}

}  // namespace

void prepare_lief() {
#if defined(HEDDLE_LIEF_HAS_CONFIG) || !__has_include(<LIEF/logging++.hpp>)
  LIEF::logging::disable();
#else  // up to 0.10
  LIEF::Logger::disable();
#endif
}

Result<ElfFacts> read_with_lief(const std::vector<std::uint8_t>& image, ImageKind kind,
                                FactsDetail detail) {
  constexpr const char* kWhat = "damaged ELF file";
  try {
    const auto binary = parse(image, kind);
    if (!binary) return fail(Error::with_code(EBADMSG, "", kWhat, "LIEF does not take it"));
    ElfFacts facts;
    read_header(*binary, facts);
    read_segments(*binary, facts);
    read_dynamic(*binary, image, facts);
    read_symbols(*binary, detail, read_versions(*binary, facts), facts);
    read_build_id(*binary, facts);
    return facts;
  } catch (const std::bad_alloc&) {
    return fail(Error::with_code(EBADMSG, "", kWhat, "it takes more memory than is allowed"));
  } catch (const std::exception& e) {
    return fail(Error::with_code(EBADMSG, "", kWhat, e.what()));
  }
}

}  // namespace heddle
