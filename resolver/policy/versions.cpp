// SPDX-License-Identifier: MIT
#include "resolver/policy/versions.hpp"

#include <algorithm>
#include <cstring>
#include <iterator>

namespace heddle::policy {

Contains compare_offers(const std::set<std::string>& first, const std::set<std::string>& second) {
  const bool has_second = std::ranges::includes(first, second);
  const bool has_first = std::ranges::includes(second, first);
  if (has_first && has_second) return Contains::equal;
  return has_second ? Contains::first : has_first ? Contains::second : Contains::neither;
}

std::vector<std::string> missing_offers(const std::set<std::string>& first,
                                        const std::set<std::string>& second) {
  std::vector<std::string> out;
  std::ranges::set_difference(first, second, std::back_inserter(out));
  return out;
}

std::set<std::string> defined_versions(const ElfFacts& facts) {
  return {facts.version_definitions.begin(), facts.version_definitions.end()};
}

std::set<std::string> exported_names(const ElfFacts& facts) {
  std::set<std::string> out;
  for (const auto& symbol : facts.exported_symbols)
    out.insert(symbol.version.empty() ? symbol.name : symbol.name + "@" + symbol.version);
  return out;
}

bool is_glibc_part(const ElfFacts& facts) {
  const auto is_private = [](const std::string& version) { return version == "GLIBC_PRIVATE"; };
  const auto is_public = [](const std::string& version) { return version.starts_with("GLIBC_"); };
  const auto& defined = facts.version_definitions;
  // Only such versions: libpthread.so.0 since 2.34. libxcrypt's libcrypt.so.1 has others too.
  if (!defined.empty() && std::ranges::all_of(defined, is_public)) return true;
  return std::ranges::any_of(defined, is_private) ||
         std::ranges::any_of(facts.version_needs, is_private, &VersionNeed::version);
}

std::vector<std::string> missing_versions(const ElfFacts& user, const std::string& soname,
                                          const ElfFacts& provider) {
  std::vector<std::string> out;
  // A file without any definitions is taken with a warning only (elf/dl-version.c, match_symbol).
  if (provider.version_definitions.empty()) return out;
  for (const auto& need : user.version_needs)
    if (need.file == soname && !need.weak && !holds(provider.version_definitions, need.version))
      out.push_back(need.version);
  return out;
}

std::vector<std::string> lost_symbols(const ElfFacts& user, const std::set<std::string>& has,
                                      const std::set<std::string>& lacks) {
  std::vector<std::string> out;
  for (const auto& symbol : user.undefined_symbols)
    if (!symbol.weak && has.contains(symbol.name) && !lacks.contains(symbol.name))
      out.push_back(symbol.name);
  return out;
}

bool is_older(const std::string& version, const std::string& than) {
  return !version.empty() && !than.empty() && ::strverscmp(version.c_str(), than.c_str()) < 0;
}

std::string shortened(const std::vector<std::string>& list) {
  if (list.empty()) return {};
  if (list.size() == 1) return list[0];
  if (list.size() == 2) return list[0] + " and " + list[1];
  return list[0] + ", " + list[1] + " and " + std::to_string(list.size() - 2) + " more";
}

const ElfFacts* SymbolReader::of(const std::string& path) {
  const auto [slot, is_new] = facts_.try_emplace(path);
  if (is_new)
    if (auto file = world_.facts_with_symbols(path)) slot->second = std::move(file->elf);
  return slot->second ? &*slot->second : nullptr;
}

const std::set<std::string>& SymbolReader::exports(const std::string& path) {
  const auto [slot, is_new] = exports_.try_emplace(path);
  if (is_new)
    if (const auto* facts = of(path))
      for (const auto& symbol : facts->exported_symbols) slot->second.insert(symbol.name);
  return slot->second;
}

}  // namespace heddle::policy
