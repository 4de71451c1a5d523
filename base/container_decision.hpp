// SPDX-License-Identifier: MIT
#pragma once

// Which files of the host a container's program gets: the document of docs/formats/container.md.
// fs-resolve writes it; fs-hook and fs-resolve explain read it.

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/result.hpp"

namespace heddle {

enum class Outcome : std::uint8_t { swap, nothing, incompatible };
enum class Side : std::uint8_t { host, container };
/// The reason for the host's file or the container's.
enum class Rule : std::uint8_t {
  mpi_stack,  ///< part of the host's MPI
  only_host,  ///< the container has none
  versions,   ///< one defines all versions of the other
  symbols,    ///< the same by symbols, for files without versions
  needs,      ///< neither does; their users' needs decide
  glibc,      ///< glibc's files are of one side
};

/// The side of the file that a program in the container gets for a soname.
struct SonameChoice {
  std::string soname;
  Side taken = Side::container;
  std::string host;       ///< path on the host; empty: it has none
  std::string container;  ///< path in the container; empty: it has none
  Rule rule = Rule::needs;
  std::string why;
};

/// The MPI library of one side.
struct MpiSide {
  std::string family;  ///< this and the next as in MpiIdentity
  std::string version;
  std::string abi;
  std::string soname;
  std::string path;
};

struct FileBind {
  std::string source;  ///< relative to the mount's root
  std::string target;  ///< in the container; exists, canonical
  std::string why;
};
struct DirectoryBind {
  std::string source;
  std::string target;
  bool exists = false;  ///< the target, in the image
  std::string why;
};

/// A path in a library of the host, changed in the copy that the mount serves, because the image
/// has no directory as a target of a bind mount.
struct ChangedPath {
  std::string library;
  std::string was;
  std::string now;
};

struct ContainerDecision {
  Outcome outcome = Outcome::nothing;
  std::string reason;
  std::string hint;
  std::vector<std::string> programs;
  std::string mount_point;
  std::optional<MpiSide> mpi;  ///< the host's
  std::optional<MpiSide> container_mpi;
  std::string host_glibc;
  std::string container_glibc;
  Side glibc = Side::container;
  std::string glibc_why;
  std::string interpreter;       ///< PT_INTERP of the programs
  std::string interpreter_file;  ///< its file, free of links
  std::vector<FileBind> binds;
  std::vector<ChangedPath> changed;  ///< by library
  std::vector<DirectoryBind> directories;
  std::map<std::string, std::string> environment;
  std::vector<SonameChoice> choices;                       ///< sorted by soname
  std::vector<std::pair<std::string, std::string>> loads;  ///< soname, path in the container
  bool loads_mpi = false;  ///< one of the programs does; else those that they start may
  std::vector<std::string> warnings;
  /// Paths of the container that the decision depends on, as in OsWorld::asked().
  std::vector<std::string> asked;
  // Added by the hook's cache:
  std::string contents;  ///< hash of what the image held at the paths that count
  std::string map_id;    ///< hash of the map's bytes; empty without a swap
};

const char* name_of(Side side);
const char* name_of(Outcome outcome);
const char* name_of(Rule rule);

/// The document.
std::string to_json(const ContainerDecision& decision);
/// Reads a document that may be anyone's: the worst it can do is name files. Refuses another
/// version and values of the wrong kind; a key that is missing leaves its field empty. `name` is
/// for messages.
Result<ContainerDecision> parse_container_decision(const std::string& text,
                                                   const std::string& name);

}  // namespace heddle
