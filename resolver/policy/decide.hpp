// SPDX-License-Identifier: MIT
#pragma once

#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "resolver/mpi/find_mpi.hpp"

namespace heddle::policy {

enum class Outcome { swap, nothing, incompatible };
enum class Side { host, container };
/// The reason for the host's file or the container's.
enum class Rule {
  mpi_stack,  ///< part of the host's MPI
  only_host,  ///< the container has none
  versions,   ///< one defines all versions of the other
  symbols,    ///< the same by symbols, for files without versions
  needs,      ///< neither does; their users' needs decide
  glibc,      ///< glibc's files are of one side
};

/// The side of the file that a program in the container gets for a soname.
struct Verdict {
  std::string soname;
  Side taken = Side::container;
  std::string host;       ///< path on the host; empty: it has none
  std::string container;  ///< path in the container; empty: it has none
  Rule rule = Rule::needs;
  std::string why;
};

/// The MPI library of one side.
struct MpiSide {
  MpiIdentity identity;
  MpiFile library;
};

struct FileBind {
  std::string source;  ///< relative to the mount's root
  std::string target;  ///< in the container; exists, canonical
  std::string why;
};
struct DirectoryBind {
  std::string source;
  std::string target;
  bool exists = false;
  std::string why;
};

/// A path in a library of the host, changed in the copy that the mount serves, because the image
/// has no directory as a target of a bind mount.
struct ChangedPath {
  std::string library;
  std::string was;
  std::string now;
};

/// The content of docs/formats/container.md, and of the map.
struct Decision {
  Outcome outcome = Outcome::nothing;
  std::string reason;
  std::string hint;
  std::vector<std::string> programs;
  std::string mount_point;
  std::optional<MpiSide> mpi;
  std::optional<MpiSide> container_mpi;
  std::string host_glibc;
  std::string container_glibc;
  Side glibc = Side::container;
  std::string glibc_why;
  std::string interpreter;
  std::string interpreter_file;
  std::vector<FileBind> binds;
  std::vector<DirectoryBind> directories;
  std::map<std::string, std::string> environment;
  bool loads_mpi = false;            ///< one of the programs does; else those that they start may
  std::vector<ChangedPath> changed;  ///< by library
  std::vector<Verdict> verdicts;     ///< sorted by soname
  std::vector<std::pair<std::string, std::string>> loads;  ///< soname, path in the container
  std::vector<std::string> warnings;
  /// Paths of the container that the decision depends on, as in OsWorld::asked().
  std::vector<std::string> asked;

  /// View name -> file on the host.
  std::map<std::string, std::string> names;
  std::string ld_so_cache;  ///< bytes
  /// Generated files of the mount, by their names below its root.
  std::map<std::string, std::string> made;
};

struct DecideOptions {
  std::vector<std::string> programs;  ///< in the container; names without '/' are searched there
  std::string mount_point = "/dev/heddle";
  /// The host's, best first; the first whose ABI is that of the container's MPI is taken.
  std::vector<MpiInstall> installs;
  bool mpi_wanted = true;         ///< false: only `roots`
  std::vector<MpiInstall> roots;  ///< further libraries to take from the host (libfabric.so.1)
  std::string path;               ///< the container's PATH
  std::string library_path;       ///< the container's LD_LIBRARY_PATH
  std::string preload;            ///< the container's LD_PRELOAD
};

/// Decides for each soname whose file the programs get, by version definitions and symbols, and
/// checks this by a second resolution of the programs with the chosen files. `inside` is below the
/// container's root. Nothing is executed. Fails when a side cannot be read; a container that must
/// not start is an outcome.
Result<Decision> decide(OsWorld& host, OsWorld& inside, const DecideOptions& options);

}  // namespace heddle::policy
