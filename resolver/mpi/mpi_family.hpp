// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "resolver/elf/elf_facts.hpp"

namespace heddle {

/// Identifies an MPI library by its symbols and bytes, without loading it.
struct MpiIdentity {
  std::string family;   ///< openmpi, mpich, intel, mvapich, cray, mpi-abi; empty: no MPI library
  std::string version;  ///< "4.0.2"; empty: unknown
  std::string abi;      ///< of interchangeable libraries: "openmpi-40", "mpich-12", "mpi-abi-0"
};

/// "Open MPI", "MPICH", ...: as people write it.
std::string mpi_family_title(const std::string& family);

/// The soname of an MPI's C library in DT_NEEDED. Open MPI: 1.10 (12), 2 and 3 (20), 4 and 5 (40).
/// MPICH's ABI initiative: libmpi.so.12 (MPICH, Intel MPI, MVAPICH2), Debian's and Ubuntu's MPICH:
/// libmpich.so.12, Cray's: libmpi_cray.so.12. The MPI 5.0 standard's ABI: libmpi_abi.so.0.
struct MpiSoname {
  const char* soname;
  const char* family;  ///< programs of one family do not run with a library of another
};
inline constexpr MpiSoname kMpiSonames[] = {
    {"libmpi.so.40", "Open MPI"},      {"libmpi.so.20", "Open MPI"},
    {"libmpi.so.12", "MPICH"},         {"libmpich.so.12", "MPICH"},
    {"libmpich.so.10", "MPICH"},       {"libmpi_cray.so.12", "MPICH"},
    {"libmpi_gnu_112.so.12", "MPICH"}, {"libmpi_abi.so.0", "MPI ABI"},
};

/// `facts` has symbols; `bytes` is the file's content, its code may be left out.
MpiIdentity identify_mpi(const ElfFacts& facts, std::string_view bytes);

/// Whether a file of that name may be an MPI library; its symbols decide.
bool may_be_mpi(std::string_view file_name);

/// The sonames of a library with `soname` in different builds of one ABI, `soname` included:
/// "libmpich.so.12" is "libmpi.so.12" in upstream's MPICH; likewise its Fortran and C++ bindings.
std::vector<std::string> mpi_aliases(const std::string& soname, const std::string& abi);
/// Whether `name` in DT_NEEDED means a library with these aliases: one of them, or any name of Cray
/// MPICH's library, which has one for each compiler.
bool stands_for(const std::vector<std::string>& aliases, const std::string& abi,
                const std::string& name);

/// The sonames in DT_NEEDED, DT_AUXILIARY and DT_FILTER.
std::vector<std::string> needed_names(const ElfFacts& elf);

/// Moves from `candidates` all that need, directly or not, one of `names` (libmpi_usempif08 needs
/// libmpi_mpifh). `take` gets each and returns its names; a candidate has its `needs`.
template <class Candidate, class Take>
void take_users(std::vector<Candidate>& candidates, std::set<std::string> names, const Take& take) {
  const auto is_user = [&](const Candidate& one) {
    if (std::ranges::none_of(one.needs, [&](const auto& need) { return names.contains(need); }))
      return false;
    for (auto& name : take(one)) names.insert(std::move(name));
    return true;
  };
  while (std::erase_if(candidates, is_user) != 0) {
  }
}

/// MPI_, PMPI_ and MPIX_ functions, in C's or Fortran's spelling.
bool is_mpi_symbol(std::string_view name);

}  // namespace heddle
