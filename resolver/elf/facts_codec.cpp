// SPDX-License-Identifier: MIT
#include "resolver/elf/facts_codec.hpp"

#include "resolver/elf/byte_codec.hpp"

namespace heddle {
namespace {

enum Bits : std::uint8_t {
  has_interp = 1,
  is_dynamic = 2,
  has_soname = 4,
  has_rpath = 8,
  has_runpath = 16,
  has_tls = 32,
  dladdr = 64,
  dlopen = 128,
};

std::string string_of(ByteReader& in) {
  const auto text = in.text();
  if (text.find('\0') != std::string_view::npos) in.refuse();
  return std::string(text);
}

bool bool_of(ByteReader& in) {
  const auto value = in.number<std::uint8_t>();
  if (value > 1) in.refuse();
  return value == 1;
}

void put_symbols(ByteWriter& out, const std::vector<DynamicSymbol>& symbols) {
  out.number(static_cast<std::uint32_t>(symbols.size()));
  for (const auto& symbol : symbols) {
    out.text(symbol.name);
    out.text(symbol.version);
    out.number(static_cast<std::uint8_t>(symbol.weak));
  }
}

std::vector<DynamicSymbol> symbols_of(ByteReader& in) {
  std::vector<DynamicSymbol> symbols(in.count(9));
  for (auto& symbol : symbols) {
    symbol.name = string_of(in);
    symbol.version = string_of(in);
    symbol.weak = bool_of(in);
  }
  return symbols;
}

}  // namespace

std::string encode_facts(const ElfFacts& facts) {
  ByteWriter out;
  out.number(facts.elf_class);
  out.number(facts.data_encoding);
  out.number(facts.os_abi);
  out.number(facts.abi_version);
  out.number(facts.type);
  out.number(facts.machine);
  unsigned bits = 0;
  if (facts.interp) bits |= has_interp;
  if (facts.dynamic) bits |= is_dynamic;
  if (facts.soname) bits |= has_soname;
  if (facts.rpath) bits |= has_rpath;
  if (facts.runpath) bits |= has_runpath;
  if (facts.tls) bits |= has_tls;
  if (facts.imports_dladdr) bits |= dladdr;
  if (facts.imports_dlopen) bits |= dlopen;
  out.number(static_cast<std::uint8_t>(bits));
  for (const auto* text : {&facts.interp, &facts.soname, &facts.rpath, &facts.runpath})
    if (*text) out.text(**text);
  if (facts.tls) {
    out.number(facts.tls->size);
    out.number(facts.tls->align);
  }
  out.number(facts.flags);
  out.number(facts.flags_1);
  out.text(facts.build_id);
  out.number(static_cast<std::uint32_t>(facts.dependencies.size()));
  for (const auto& dependency : facts.dependencies) {
    out.number(static_cast<std::uint8_t>(dependency.kind));
    out.text(dependency.name);
  }
  out.number(static_cast<std::uint32_t>(facts.version_needs.size()));
  for (const auto& need : facts.version_needs) {
    out.text(need.file);
    out.text(need.version);
    out.number(static_cast<std::uint8_t>(need.weak));
  }
  out.number(static_cast<std::uint32_t>(facts.version_definitions.size()));
  for (const auto& definition : facts.version_definitions) out.text(definition);
  put_symbols(out, facts.exported_symbols);
  put_symbols(out, facts.undefined_symbols);
  return out.take();
}

std::optional<ElfFacts> decode_facts(std::string_view bytes) {
  ByteReader in(bytes);
  ElfFacts facts;
  facts.elf_class = in.number<std::uint8_t>();
  facts.data_encoding = in.number<std::uint8_t>();
  facts.os_abi = in.number<std::uint8_t>();
  facts.abi_version = in.number<std::uint8_t>();
  facts.type = in.number<std::uint16_t>();
  facts.machine = in.number<std::uint16_t>();
  const unsigned bits = in.number<std::uint8_t>();
  facts.dynamic = (bits & is_dynamic) != 0;
  facts.imports_dladdr = (bits & dladdr) != 0;
  facts.imports_dlopen = (bits & dlopen) != 0;
  if (bits & has_interp) facts.interp = string_of(in);
  if (bits & has_soname) facts.soname = string_of(in);
  if (bits & has_rpath) facts.rpath = string_of(in);
  if (bits & has_runpath) facts.runpath = string_of(in);
  if (bits & has_tls) {
    const auto size = in.number<std::uint64_t>();
    facts.tls = TlsSegment{size, in.number<std::uint64_t>()};
  }
  facts.flags = in.number<std::uint64_t>();
  facts.flags_1 = in.number<std::uint64_t>();
  facts.build_id = string_of(in);
  facts.dependencies.resize(in.count(5));
  for (auto& dependency : facts.dependencies) {
    const auto kind = in.number<std::uint8_t>();
    if (kind > static_cast<std::uint8_t>(Dependency::Kind::filter)) in.refuse();
    dependency.kind = static_cast<Dependency::Kind>(kind);
    dependency.name = string_of(in);
  }
  facts.version_needs.resize(in.count(9));
  for (auto& need : facts.version_needs) {
    need.file = string_of(in);
    need.version = string_of(in);
    need.weak = bool_of(in);
  }
  facts.version_definitions.resize(in.count(4));
  for (auto& definition : facts.version_definitions) definition = string_of(in);
  facts.exported_symbols = symbols_of(in);
  facts.undefined_symbols = symbols_of(in);
  if (!in.ok() || !in.at_end()) return std::nullopt;
  return facts;
}

}  // namespace heddle
