// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace heddle {

enum class Outcome { swap, nothing, incompatible };
enum class Side { host, container };

/// One soname, and whose file a program in the container gets under it.
struct Verdict {
  std::string soname;
  Side taken = Side::container;
  std::string host;       ///< path on the host; empty: it has none
  std::string container;  ///< path in the container; empty: it has none
  std::string rule;       ///< mpi-stack, only-host, only-container, versions, symbols, needs, glibc
  std::string why;
};

/// An MPI library as either side has it.
struct MpiSide {
  std::string family;
  std::string version;
  std::string soname;
  std::string abi;
  std::string path;
};

struct FileBind {
  std::string source;  ///< relative to the mount's root
  std::string target;  ///< in the container; exists, free of symbolic links
  std::string why;
};
struct FolderBind {
  std::string source;
  std::string target;
  bool exists = false;
  std::string why;
};

/// A file of the image that is served over itself with another RPATH or RUNPATH.
struct ServedFile {
  struct Patch {
    std::uint64_t offset = 0;
    std::string before;
    std::string after;
  };
  std::string target;  ///< in the container, free of symbolic links
  std::string tags;    ///< its own search path
  std::string now;     ///< the one it is served with; empty: none
  std::uint32_t owner = 0;
  std::uint32_t group = 0;
  std::vector<Patch> patches;  ///< by offset
};
/// Where the mount has such a file, below its root.
inline std::string served_as(const ServedFile& file) { return ".image" + file.target; }

/// A file of the host that is served with another path built into it, where the image has no folder
/// that the host's could go over.
struct ChangedFile {
  std::string path;
  std::uint64_t offset = 0;
  std::string was;  ///< a string of its own in the file
  std::string now;  ///< no longer
};

/// What becomes of a search path that leads to the image's copy of what is the host's.
enum class RpathWay {
  bind,        ///< the host's file is bound over the copy
  neutralise,  ///< the file that has the tag is served with another
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
  std::vector<FolderBind> folders;
  std::map<std::string, std::string> environment;
  RpathWay rpath = RpathWay::bind;                         ///< as it is done
  std::vector<ServedFile> served;                          ///< sorted by target
  std::vector<ChangedFile> changed;                        ///< by path and offset
  std::vector<Verdict> verdicts;                           ///< sorted by soname
  std::vector<std::pair<std::string, std::string>> loads;  ///< soname, path in the container
  std::vector<std::string> warnings;
  /// Paths of the container that the answer hangs on, as OsWorld::asked() has them.
  std::vector<std::string> asked;

  /// View name -> file on the host.
  std::map<std::string, std::string> names;
  std::string ld_so_cache;                  ///< bytes
  std::map<std::string, std::string> made;  ///< further files that the mount serves in .heddle
};

}  // namespace heddle
