// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "resolver/elf/elf_facts.hpp"

namespace heddle {

/// What an MPI library is, told from its symbols and its bytes: it is never loaded.
struct MpiIdentity {
  std::string family;   ///< openmpi, mpich, intel, mvapich, cray, mpi-abi; empty: no MPI library
  std::string version;  ///< "4.0.2"; empty: the file does not say
  /// Libraries of equal `abi` may stand for each other: "openmpi-40", "mpich-12", "mpi-abi-0".
  std::string abi;
};

/// "Open MPI", "MPICH", ...: as people write it.
std::string mpi_family_title(const std::string& family);

/// A name by which programs ask for their MPI's C library, and its ABI: programs of one do not run
/// with a library of another, whatever its name. Open MPI: 1.10 (12), 2 and 3 (20), 4 and 5 (40).
/// MPICH's ABI initiative: libmpi.so.12 (MPICH, Intel MPI, MVAPICH2), Debian's and Ubuntu's MPICH:
/// libmpich.so.12, Cray's: libmpi_cray.so.12. The MPI 5.0 standard's ABI: libmpi_abi.so.0.
struct MpiSoname {
  const char* soname;
  const char* family;  ///< of libraries with one ABI
};
inline constexpr MpiSoname kMpiSonames[] = {
    {"libmpi.so.40", "Open MPI"},      {"libmpi.so.20", "Open MPI"},
    {"libmpi.so.12", "MPICH"},         {"libmpich.so.12", "MPICH"},
    {"libmpich.so.10", "MPICH"},       {"libmpi_cray.so.12", "MPICH"},
    {"libmpi_gnu_112.so.12", "MPICH"}, {"libmpi_abi.so.0", "MPI ABI"},
};

/// `facts` with symbols, `bytes` the file's content; its code may be left out.
MpiIdentity identify_mpi(const ElfFacts& facts, std::string_view bytes);

/// Whether a file of that name may be an MPI library: a short list only, its symbols decide.
bool may_be_mpi(std::string_view file_name);

/// The sonames by which libraries of one ABI are known, `soname` among them: "libmpich.so.12" is
/// "libmpi.so.12" with upstream MPICH, its Fortran and C++ bindings likewise. Just `soname` where
/// it has no other names.
std::vector<std::string> mpi_aliases(const std::string& soname, const std::string& abi);
/// Whether a library with these aliases is what a program asks for by `name`: one of them, or any
/// of the names that Cray MPICH's library has, one for each compiler.
bool stands_for(const std::vector<std::string>& aliases, const std::string& abi,
                const std::string& name);

/// The sonames in DT_NEEDED and its kin.
std::vector<std::string> needed_names(const ElfFacts& elf);

/// Takes out of `candidates` what needs one of `names`, or a name that `take` gave for another one
/// that was taken (libmpi_usempif08 needs libmpi_mpifh). A candidate has its `needs`.
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
