// SPDX-License-Identifier: MIT
#include "resolver/policy/mpi_gate.hpp"

#include <algorithm>
#include <set>

namespace heddle {
namespace {

/// What Open MPI's mpi.h makes of MPI_COMM_WORLD and the like: data, of which a program has a copy
/// of its own (R_X86_64_COPY), so that it seems to define what it needs. ld.so looks for the
/// library's at the start, and ends the program where there is none.
bool is_handle(const std::string& name) { return name.starts_with("ompi_mpi_"); }

}  // namespace

MpiMatch match_mpi(const std::vector<MpiInstall>& installs, const ContainerStack& stack) {
  for (const auto& install : installs) {
    for (const auto& library : stack.libraries)
      if (library.identity.abi == install.identity.abi) return {&install, library};
    if (!stack.libraries.empty()) continue;
    for (const auto& name : stack.missing)
      if (stands_for(install.aliases, install.identity.abi, name)) return {&install, std::nullopt};
  }
  MpiMatch none;
  if (!stack.libraries.empty()) none.library = stack.libraries.front();
  return none;
}

std::vector<MissingSymbol> missing_symbols(ContainerSide& inside, SymbolReader& inside_symbols,
                                           const ContainerStack& stack, SymbolReader& host_symbols,
                                           const std::vector<std::string>& host_files) {
  std::set<std::string> names(stack.missing.begin(), stack.missing.end());
  std::set<std::string> container_has;
  for (const auto* list : {&stack.libraries, &stack.bindings})
    for (const auto& part : *list) {
      names.insert(part.names.begin(), part.names.end());
      const auto& exported = inside_symbols.exports(part.path);
      container_has.insert(exported.begin(), exported.end());
    }
  std::set<std::string> host_has;
  for (const auto& path : host_files) {
    const auto& exported = host_symbols.exports(path);
    host_has.insert(exported.begin(), exported.end());
  }
  std::vector<MissingSymbol> out;
  for (const auto* object : inside.objects()) {
    if (stack.part_of(object->file.stamp.id) != nullptr) continue;
    const auto& needs = object->file.elf.dependencies;
    if (std::none_of(needs.begin(), needs.end(),
                     [&](const Dependency& need) { return names.contains(need.name); }))
      continue;
    const auto* facts = inside_symbols.of(object->path);
    if (facts == nullptr) continue;
    for (const auto& symbol : facts->undefined_symbols)
      if (!symbol.weak && !host_has.contains(symbol.name) &&
          (is_mpi_symbol(symbol.name) || is_handle(symbol.name) ||
           container_has.contains(symbol.name)))
        out.push_back({object->path, symbol.name});
    for (const auto& symbol : facts->exported_symbols)
      if (is_handle(symbol.name) && !host_has.contains(symbol.name))
        out.push_back({object->path, symbol.name});
  }
  if (out.empty()) return out;
  // mpi_something of the program's own libraries, or libc's memcpy that an MPI exports too.
  for (const auto* object : inside.objects()) {
    if (stack.part_of(object->file.stamp.id) != nullptr) continue;
    const auto& exported = inside_symbols.exports(object->path);
    std::erase_if(out, [&](const MissingSymbol& one) {
      return exported.contains(one.symbol) && !is_handle(one.symbol);
    });
  }
  return out;
}

std::vector<std::string> lost_functions(SymbolReader& inside_symbols,
                                        const std::string& container_file,
                                        SymbolReader& host_symbols, const std::string& host_file) {
  std::vector<std::string> out;
  const auto& host_has = host_symbols.exports(host_file);
  for (const auto& name : inside_symbols.exports(container_file))
    if (name.starts_with("MPI_") && !host_has.contains(name)) out.push_back(name);
  return out;
}

std::string family_title(const std::string& family) {
  if (family == "openmpi") return "Open MPI";
  if (family == "mpich") return "MPICH";
  if (family == "intel") return "Intel MPI";
  if (family == "mvapich") return "MVAPICH";
  if (family == "cray") return "Cray MPICH";
  if (family == "mpi-abi") return "an MPI of the standard ABI";
  return "an MPI";
}

std::string describe(const MpiIdentity& identity) {
  return family_title(identity.family) + (identity.version.empty() ? "" : " " + identity.version);
}

}  // namespace heddle
