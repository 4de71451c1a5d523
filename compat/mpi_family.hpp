// SPDX-License-Identifier: MIT
#pragma once

namespace heddle::compat {

/// The soname of an MPI C library and its family. Families have different ABIs: one's programs do
/// not run with another's library.
struct MpiSoname {
  const char* soname;
  const char* family;
};

inline constexpr const char* kOpenMpi = "Open MPI";

/// Open MPI: 1.10 (12), 2 and 3 (20), 4 and 5 (40). MPICH's ABI initiative: libmpi.so.12 (MPICH,
/// Intel MPI, MVAPICH2), Debian's and Ubuntu's MPICH: libmpich.so.12, Cray's: libmpi_cray.so.12.
/// The MPI 5.0 standard's ABI: libmpi_abi.so.0.
inline constexpr MpiSoname kMpiSonames[] = {
    {"libmpi.so.40", kOpenMpi},        {"libmpi.so.20", kOpenMpi},
    {"libmpi.so.12", "MPICH"},         {"libmpich.so.12", "MPICH"},
    {"libmpich.so.10", "MPICH"},       {"libmpi_cray.so.12", "MPICH"},
    {"libmpi_gnu_112.so.12", "MPICH"}, {"libmpi_abi.so.0", "MPI ABI"},
};

}  // namespace heddle::compat
