// SPDX-License-Identifier: MIT
#pragma once

#include <fmt/format.h>

#include <ostream>
#include <string>

#include "resolver/elf/elf_facts.hpp"

namespace heddle {

/// Facts as text, a line each, so that a failed comparison shows which one differs.
inline std::string to_text(const ElfFacts& facts) {
  const auto text = [](const std::optional<std::string>& s) { return s ? "'" + *s + "'" : "none"; };
  std::string out = fmt::format(
      "class {} data {} osabi {} abiversion {} type {} machine {}\ninterp {}\ndynamic {}\nsoname "
      "{}\nrpath {}\nrunpath {}\nflags {:#x} flags_1 {:#x}\nbuild id {}\ndladdr {} dlopen {}\n",
      facts.elf_class, facts.data_encoding, facts.os_abi, facts.abi_version, facts.type,
      facts.machine, text(facts.interp), facts.dynamic, text(facts.soname), text(facts.rpath),
      text(facts.runpath), facts.flags, facts.flags_1, facts.build_id, facts.imports_dladdr,
      facts.imports_dlopen);
  if (facts.tls) out += fmt::format("tls {} align {}\n", facts.tls->size, facts.tls->align);
  for (const auto& d : facts.dependencies)
    out += fmt::format("dependency {} {}\n", static_cast<int>(d.kind), d.name);
  for (const auto& n : facts.version_needs)
    out += fmt::format("needs {} {}{}\n", n.file, n.version, n.weak ? " weak" : "");
  for (const auto& d : facts.version_definitions) out += fmt::format("defines {}\n", d);
  for (const auto& s : facts.exported_symbols)
    out += fmt::format("exports {}@{}{}\n", s.name, s.version, s.weak ? " weak" : "");
  for (const auto& s : facts.undefined_symbols)
    out += fmt::format("imports {}@{}{}\n", s.name, s.version, s.weak ? " weak" : "");
  return out;
}

/// The first lines in which two texts differ.
inline std::string first_difference(const std::string& a, const std::string& b) {
  std::size_t start = 0;
  for (std::size_t i = 0; i < a.size() && i < b.size() && a[i] == b[i]; ++i)
    if (a[i] == '\n') start = i + 1;
  const auto line = [start](const std::string& s) {
    return s.substr(start, s.find('\n', start) - start);
  };
  return fmt::format("'{}' against '{}'", line(a), line(b));
}

}  // namespace heddle
