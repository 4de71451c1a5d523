// SPDX-License-Identifier: MIT
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "resolver/mpi/mpi_family.hpp"
#include "resolver/search/os_world.hpp"
#include "resolver/search/search.hpp"

namespace heddle {

/// A library of an installation.
struct MpiFile {
  std::string soname;
  std::string path;  ///< absolute
};

/// A directory with files that a library opens at run time, which no DT_NEEDED shows.
struct PluginDirectory {
  std::string path;       ///< on the host
  std::string view_name;  ///< its name in a view: "ucx", "share/openmpi"
  std::string wanted_by;  ///< path of the library
  /// True: the library searches beside itself (dladdr), which works in a view; false: at `path`, a
  /// string of the library, or where an environment variable says.
  bool beside = false;
  std::vector<std::string> environment;  ///< names of such variables
  /// Strings of the library that may be the directory, or with a slash begin a path in it.
  std::vector<std::string> built_in;
  /// Its name in a view for a library in which such a string is changed and has no room for
  /// `view_name`; empty: the files with the prefix `only` go into the view's root.
  std::optional<std::string> short_name;
  bool is_data = false;  ///< parameters or texts; those of the image are for its own libraries
  std::string only;      ///< prefix of the file names
  std::vector<std::string> plugins;  ///< names of its ELF files, sorted; the rest is data
};

/// An MPI library (or another root library) of this machine with its files.
struct MpiInstall {
  MpiIdentity identity;              ///< family empty: a root that is no MPI library
  MpiFile library;                   ///< its path is canonical
  std::vector<std::string> aliases;  ///< sonames in DT_NEEDED that mean it
  std::string found_by;
  std::vector<MpiFile> bindings;  ///< Fortran and C++ libraries built with it
  std::vector<MpiFile> closure;   ///< the libraries that ld.so loads for it, in its order
  std::vector<PluginDirectory> plugin_directories;
  std::vector<std::string> missing;  ///< "libx.so.1, needed by ..."
};

/// Every MPI installation that PATH, `mpicc -show`, the environment and ld.so.cache lead to, each
/// library once, in that order; with `prefix`, only those below it or behind its links, or the
/// library of that path. No library is loaded. Fails only when this machine's ld.so cannot be read.
Result<std::vector<MpiInstall>> find_mpi(OsWorld& world, const std::string& prefix);

/// As find_mpi() for one library of any kind: a soname of ld.so.cache, or a path. ENOENT: none.
Result<MpiInstall> find_root(OsWorld& world, const std::string& soname);

/// `path` without symbolic links; unchanged when it does not exist.
std::string canonical(const std::string& path);

/// Whether the file of a plugin directory is never taken: hwloc's GL and OpenCL components, with
/// which MPI_Init() would connect to X displays and start OpenCL drivers (hwloc_topology_load()).
bool is_excluded_plugin(const std::string& file_name);

/// The closure of the library `path`. If libraries are missing, again with `directory`, unless it
/// is empty, added to LD_LIBRARY_PATH, as an installation's module file does.
Result<Closure> closure_of(OsWorld& world, const LoaderProfile& loader, const std::string& path,
                           const std::string& directory);

}  // namespace heddle
