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

/// A directory that a library opens files of at run time: no DT_NEEDED tells of it.
struct PluginDirectory {
  std::string path;       ///< on the host
  std::string view_name;  ///< where it stands in a view: "ucx", "share/openmpi"
  std::string wanted_by;  ///< path of the library
  /// True: the library looks beside itself (dladdr), so a view serves it; false: at `path`, a
  /// string built into it, unless the environment says otherwise.
  bool beside = false;
  std::vector<std::string> environment;  ///< variables that name the directory, if any
  /// Strings of the library's own that it may have the directory by: as they are, or with more
  /// behind a slash.
  std::vector<std::string> built_in;
  /// The directory's place in a view for a library in which such a string is changed, where
  /// `view_name` is too long for that; empty: the view's root, which gets `only` then.
  std::optional<std::string> short_name;
  /// Parameters or texts, no plugins: the image's own, if it has some, are for its own libraries.
  bool is_data = false;
  std::string only;                  ///< prefix of the names that count
  std::vector<std::string> plugins;  ///< its ELF files' names, sorted; the rest is data
};

/// One MPI library of this machine (or another root library) with all that belongs to it.
struct MpiInstall {
  MpiIdentity identity;              ///< family empty: a root that is no MPI library
  MpiFile library;                   ///< path free of symbolic links
  std::vector<std::string> aliases;  ///< sonames it may be asked for by
  std::string found_by;
  std::vector<MpiFile> bindings;  ///< Fortran and C++ libraries built with it
  std::vector<MpiFile> closure;   ///< what ld.so loads for it, in its order, itself left out
  std::vector<PluginDirectory> plugin_directories;
  std::vector<std::string> missing;  ///< "libx.so.1, needed by ..."
};

/// Every MPI installation that PATH, `mpicc -show`, the environment and ld.so.cache lead to, each
/// library once, in that order; or, with `prefix`, what is below it, or all its links lead to. No
/// library is loaded. Fails only when this machine's ld.so cannot be read.
Result<std::vector<MpiInstall>> find_mpi(OsWorld& world, const std::string& prefix);

/// As one of find_mpi(), for any library: a soname of ld.so.cache, or a path. Fails (ENOENT) when
/// there is none.
Result<MpiInstall> find_root(OsWorld& world, const std::string& soname);

/// `path` free of symbolic links; itself when it leads nowhere.
std::string canonical(const std::string& path);

/// What ld.so loads for the library `path`. What is missing then is looked for in `directory` too,
/// as with the LD_LIBRARY_PATH that an installation's module file sets; empty: not.
Result<Closure> closure_of(OsWorld& world, const LoaderProfile& loader, const std::string& path,
                           const std::string& directory);

}  // namespace heddle
