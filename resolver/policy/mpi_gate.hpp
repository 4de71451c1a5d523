// SPDX-License-Identifier: MIT
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "resolver/mpi/find_mpi.hpp"
#include "resolver/policy/container_stack.hpp"

namespace heddle {

/// The host's MPI that stands for the container's.
struct MpiMatch {
  const MpiInstall* install = nullptr;  ///< null: none of the host's has that ABI
  std::optional<StackPart> library;     ///< none: the image has none, a program only asks for it
};
MpiMatch match_mpi(const std::vector<MpiInstall>& installs, const ContainerStack& stack);

/// A symbol that a program's file wants from its MPI.
struct MissingSymbol {
  std::string user;  ///< path in the container
  std::string symbol;
};

/// Symbols that the container's programs and their libraries take from the container's MPI (every
/// undefined MPI_* one, and whatever else only that MPI exports) and `host_files`, the library and
/// its bindings, do not export. Weak ones do not count.
std::vector<MissingSymbol> missing_symbols(ContainerSide& inside, SymbolReader& inside_symbols,
                                           const ContainerStack& stack, SymbolReader& host_symbols,
                                           const std::vector<std::string>& host_files);

/// MPI_* functions of `container_file` that `host_file` does not export.
std::vector<std::string> lost_functions(SymbolReader& inside_symbols,
                                        const std::string& container_file,
                                        SymbolReader& host_symbols, const std::string& host_file);

/// "Open MPI", "MPICH", ...: as people write it.
std::string family_title(const std::string& family);
/// "MPICH 4.0.2".
std::string describe(const MpiIdentity& identity);

}  // namespace heddle
