// SPDX-License-Identifier: MIT
#pragma once

#include <map>
#include <set>
#include <string>
#include <vector>

#include "resolver/mpi/mpi_family.hpp"
#include "resolver/policy/container_side.hpp"
#include "resolver/policy/versions.hpp"

namespace heddle::policy {

/// A library of the container's MPI: the one itself, or its Fortran or C++ bindings.
struct StackPart {
  std::string soname;
  std::string path;  ///< in the container
  FileId id;
  MpiIdentity identity;            ///< family empty: bindings
  std::vector<std::string> names;  ///< it is asked for by, `soname` among them
  std::vector<std::string> needs;  ///< DT_NEEDED
};

/// The MPI that the container's programs would load without us.
struct ContainerStack {
  std::vector<StackPart> libraries;  ///< mostly one; several: an image with several MPIs
  std::vector<StackPart> bindings;
  std::vector<std::string> missing;  ///< MPI libraries that programs need and the image lacks
  /// False: no program needs it by itself (a script, an interpreter, a shell that starts one); it
  /// is what the image's ld.so.cache has.
  bool needed_by_program = false;
  /// Libraries and bindings in directories that neither the programs nor ld.so.cache lead to: what
  /// others find there by tags of their own.
  std::vector<StackPart> copies;
  std::vector<std::string> watched;  ///< directories in which one that is added later shows
  /// Directories of copies that stay as they are, and why.
  std::map<std::string, std::string> stays;
  /// Directories, free of links, of libraries and bindings that are no copies: the host's goes over
  /// those, whatever lies beside them.
  std::set<std::string> swapped;
  /// Copies in such a directory that should have stayed, by path, and why.
  std::map<std::string, std::string> mixed;

  bool empty() const { return libraries.empty() && missing.empty(); }
  const StackPart* part_of(const FileId& id) const;
  /// Leaves out libraries of another ABI than `abi` and their bindings.
  void keep(const std::string& abi);
  /// One of the copies, in a directory that stays.
  bool has_to_stay(const StackPart& part) const;
  /// Fills in `swapped`.
  void note_swapped_directories(OsWorld& inside);
  /// The directory of `copy` stays for the reason `why`. False: that cannot be, or was so before.
  bool leave(const StackPart& copy, const std::string& why);
  /// The copies are all that the image has.
  void take_copies();

 private:
  bool is_copy(const StackPart& part) const;
};

/// Fills in `stack`'s copies. False: not all of the image was looked at.
bool find_stack_copies(ContainerSide& inside, SymbolReader& symbols, ContainerStack& stack);

ContainerStack find_container_stack(ContainerSide& inside, SymbolReader& symbols);

}  // namespace heddle::policy
