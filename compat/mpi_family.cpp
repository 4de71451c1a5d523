// SPDX-License-Identifier: MIT
#include "compat/mpi_family.hpp"

#include <algorithm>
#include <utility>

#include "resolver/mpi/mpi_family.hpp"

namespace heddle::compat {
std::string mpi_family_of(const std::string& soname) {
  for (const auto& known : kMpiSonames)
    if (soname == known.soname) return known.abi;
  return {};
}

MpiUse mpi_use(const ElfFacts& elf) {
  MpiUse use;
  for (const auto& dependency : elf.dependencies) {
    auto family = mpi_family_of(dependency.name);
    if (family.empty()) continue;
    use = {std::move(family), dependency.name};
    break;
  }
  // Open MPI's predefined handles are the addresses of such objects; MPICH's are numbers.
  const bool ompi =
      std::any_of(elf.undefined_symbols.begin(), elf.undefined_symbols.end(),
                  [](const DynamicSymbol& s) { return s.name.starts_with("ompi_mpi_"); });
  if (ompi && !use.soname.empty()) use.family = "Open MPI";
  return use;
}

const std::vector<std::string>& known_mpi_sonames() {
  static const std::vector<std::string> kNames = [] {
    std::vector<std::string> names;
    for (const auto& known : kMpiSonames) names.emplace_back(known.soname);
    return names;
  }();
  return kNames;
}

}  // namespace heddle::compat
