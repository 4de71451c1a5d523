// SPDX-License-Identifier: MIT
#include "resolver/elf/elf_facts.hpp"

#include <algorithm>

namespace heddle {

bool is_sound(const ElfFacts& facts) {
  const auto text = [](const std::string& s) { return s.find('\0') == std::string::npos; };
  const auto optional = [&](const std::optional<std::string>& s) { return !s || text(*s); };
  const auto all = [](const auto& list, const auto& is_good) {
    return std::all_of(list.begin(), list.end(), is_good);
  };
  const auto symbol = [&](const DynamicSymbol& s) { return text(s.name) && text(s.version); };
  return optional(facts.interp) && optional(facts.soname) && optional(facts.rpath) &&
         optional(facts.runpath) && text(facts.build_id) &&
         all(facts.dependencies,
             [&](const Dependency& d) {
               return d.kind <= Dependency::Kind::filter && text(d.name);
             }) &&
         all(facts.version_needs,
             [&](const VersionNeed& n) { return text(n.file) && text(n.version); }) &&
         all(facts.version_definitions, text) && all(facts.exported_symbols, symbol) &&
         all(facts.undefined_symbols, symbol);
}

}  // namespace heddle
