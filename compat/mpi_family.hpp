// SPDX-License-Identifier: MIT
#pragma once

#include <string>
#include <vector>

#include "resolver/elf/elf_facts.hpp"

namespace heddle::compat {

/// Which MPI a file was built for. Families have different ABIs: one's programs do not run with
/// another's library, whatever its name.
struct MpiUse {
  std::string family;  ///< "Open MPI", "MPICH", "MPI ABI"; empty: none
  std::string soname;  ///< the DT_NEEDED name that tells
};

/// `elf` with symbols: libmpi.so.12 is MPICH's ABI or an Open MPI 1.10, only the symbols tell.
MpiUse mpi_use(const ElfFacts& elf);

/// The family whose C library bears this soname; empty: none.
std::string mpi_family_of(const std::string& soname);

/// The sonames to look for when a machine's own MPI is asked for.
const std::vector<std::string>& known_mpi_sonames();

}  // namespace heddle::compat
