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
/// What decided between the host's file and the container's.
enum class Rule {
  mpi_stack,  ///< part of the host's MPI
  only_host,  ///< the container has none
  versions,   ///< one defines all versions of the other
  symbols,    ///< the same by symbols, for files without versions
  needs,      ///< neither does: what their users need
  glibc,      ///< glibc goes as a whole
};

/// One soname, and whose file a program in the container gets under it.
struct Verdict {
  std::string soname;
  Side taken = Side::container;
  std::string host;       ///< path on the host; empty: it has none
  std::string container;  ///< path in the container; empty: it has none
  Rule rule = Rule::needs;
  std::string why;
};

/// An MPI library as either side has it.
struct MpiSide {
  MpiIdentity identity;
  MpiFile library;
};

struct FileBind {
  std::string source;  ///< relative to the mount's root
  std::string target;  ///< in the container; exists, free of symbolic links
  std::string why;
};
struct DirectoryBind {
  std::string source;
  std::string target;
  bool exists = false;
  std::string why;
};

/// A path built into a library of the host, of which a changed copy is served where the image has
/// no directory to bind the host's over.
struct ChangedPath {
  std::string library;
  std::string was;
  std::string now;
};

/// What docs/formats/container.md describes, and what the map needs to be made of.
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
  std::vector<ChangedPath> changed;                        ///< by library
  std::vector<Verdict> verdicts;                           ///< sorted by soname
  std::vector<std::pair<std::string, std::string>> loads;  ///< soname, path in the container
  std::vector<std::string> warnings;
  /// Paths of the container that the answer hangs on, as OsWorld::asked() has them.
  std::vector<std::string> asked;

  /// View name -> file on the host.
  std::map<std::string, std::string> names;
  std::string ld_so_cache;  ///< bytes
  /// Further files that the mount serves, by their names below its root.
  std::map<std::string, std::string> made;
};

struct DecideOptions {
  std::vector<std::string> programs;  ///< in the container; a name without '/' is looked for there
  std::string mount_point = "/dev/heddle";
  /// The host's, best first; the first whose ABI is that of the container's MPI is taken.
  std::vector<MpiInstall> installs;
  bool mpi_wanted = true;         ///< false: `roots` alone
  std::vector<MpiInstall> roots;  ///< further libraries that are to be the host's (libfabric.so.1)
  std::string library_path;       ///< LD_LIBRARY_PATH that the container will run with
};

/// Decides for each soname whose file the programs get, from version definitions and symbols, and
/// checks it by resolving the programs again as if all were in place. `inside` is below the
/// container's root. Nothing is executed. Fails when a side cannot be read at all; what must not
/// start is an outcome, no failure.
Result<Decision> decide(OsWorld& host, OsWorld& inside, const DecideOptions& options);

}  // namespace heddle::policy
