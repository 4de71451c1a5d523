// SPDX-License-Identifier: MIT
#include "compat/mpi_family.hpp"

#include <algorithm>
#include <utility>

namespace heddle::compat {
namespace {

constexpr const char* kOpenMpi = "Open MPI";
constexpr const char* kMpich = "MPICH";
constexpr const char* kMpiAbi = "MPI ABI";

/// Open MPI: 1.10 (12), 2 and 3 (20), 4 and 5 (40). MPICH's ABI initiative: libmpi.so.12 (MPICH,
/// Intel MPI, MVAPICH2), Debian's and Ubuntu's MPICH: libmpich.so.12, Cray's: libmpi_cray.so.12.
/// The MPI 5.0 standard's ABI: libmpi_abi.so.0.
const std::vector<std::pair<const char*, const char*>>& families() {
  static const std::vector<std::pair<const char*, const char*>> kFamilies = {
      {"libmpi.so.40", kOpenMpi},       {"libmpi.so.20", kOpenMpi},   {"libmpi.so.12", kMpich},
      {"libmpich.so.12", kMpich},       {"libmpich.so.10", kMpich},   {"libmpi_cray.so.12", kMpich},
      {"libmpi_gnu_112.so.12", kMpich}, {"libmpi_abi.so.0", kMpiAbi},
  };
  return kFamilies;
}

}  // namespace

std::string mpi_family_of(const std::string& soname) {
  for (const auto& [name, family] : families())
    if (soname == name) return family;
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
  if (ompi && !use.soname.empty()) use.family = kOpenMpi;
  return use;
}

const std::vector<std::string>& known_mpi_sonames() {
  static const std::vector<std::string> kNames = [] {
    std::vector<std::string> names;
    for (const auto& [name, family] : families()) names.emplace_back(name);
    return names;
  }();
  return kNames;
}

}  // namespace heddle::compat
