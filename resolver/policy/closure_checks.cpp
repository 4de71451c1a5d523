// SPDX-License-Identifier: MIT
#include "resolver/policy/closure_checks.hpp"

#include <algorithm>
#include <set>

#include "resolver/policy/versions.hpp"

namespace heddle {
namespace {

constexpr const char* kPrivate = "GLIBC_PRIVATE";

const LoadedObject* provider(const Closure& closure, const std::string& name) {
  for (const auto& object : closure.objects)
    if (object.file.elf.soname == name ||
        std::find(object.names.begin(), object.names.end(), name) != object.names.end())
      return &object;
  return nullptr;
}

/// Names with the version GLIBC_PRIVATE that a glibc exports.
std::set<std::string> private_symbols(const GlibcFamily& family, OsWorld& host) {
  std::set<std::string> out;
  for (const auto& [soname, file] : family.files)
    if (const auto facts = host.facts_with_symbols(file.path))
      for (const auto& symbol : facts->elf.exported_symbols)
        if (symbol.version == kPrivate) out.insert(symbol.name);
  return out;
}

}  // namespace

std::vector<UnmetNeed> unmet_needs(const Closure& closure) {
  std::vector<UnmetNeed> out;
  for (const auto& object : closure.objects) {
    std::set<std::string> asked;
    for (const auto& need : object.file.elf.version_needs) {
      if (!asked.insert(need.file).second) continue;
      const auto* found = provider(closure, need.file);
      if (found == nullptr) continue;
      const auto missing = missing_versions(object.file.elf, need.file, found->file.elf);
      if (!missing.empty())
        out.push_back({need.file, object.path + " needs " + shortened(missing) + " of " +
                                      need.file + ", which " + found->path + " lacks"});
    }
  }
  return out;
}

std::string stranded_part(const Closure& closure, SwappedWorld& world, OsWorld& inside,
                          OsWorld& host, const GlibcFamily& family, const GlibcChoice& glibc) {
  if (glibc.taken == Side::container) return {};
  std::set<std::string> offered;
  for (const auto& object : closure.objects) {
    if (!is_glibc_part(object.file.elf) || !world.host_file(object.path).empty()) continue;
    if (offered.empty()) offered = private_symbols(family, host);
    const auto facts = inside.facts_with_symbols(object.path);
    if (!facts) continue;
    for (const auto& symbol : facts->elf.undefined_symbols)
      if (symbol.version == kPrivate && !symbol.weak && !offered.contains(symbol.name))
        return object.path + " belongs to the container's glibc " + glibc.container_version +
               ", which cannot stay (" + glibc.why + "): it needs " + symbol.name +
               ", which the host's glibc " + family.version + " does not have";
  }
  return {};
}

}  // namespace heddle
