// SPDX-License-Identifier: MIT
#pragma once

#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "resolver/mpi/mpi_family.hpp"
#include "resolver/policy/versions.hpp"
#include "resolver/search/ld_so_cache.hpp"
#include "resolver/search/search.hpp"

namespace heddle::policy {

/// A program in the container with what its own ld.so loads for it.
struct ContainerProgram {
  std::string path;
  Closure closure;
};

/// A library of either side.
struct SideFile {
  std::string soname;  ///< of a plugin of the host: its name below the mount
  std::string path;    ///< of the host: free of symbolic links
  FileFacts file;
  /// What of the host's MPI stack it is ("UCX", "libfabric"); empty: a system or toolchain library.
  std::string stack_part{};
};

/// The container's root as its programs see it.
class ContainerSide {
 public:
  explicit ContainerSide(OsWorld& world) : symbols_(world), world_(world) {}

  /// Follows #! lines. False, with `reason`: nothing to swap (a static program). Fails when it is
  /// not there or its loader is none of glibc's.
  Result<bool> add_program(const std::string& name, const SearchOptions& options,
                           std::string& reason);

  /// What ld.so would find for `soname`: in a program's closure, in the cache, in the default
  /// directories; of its own soname, itself. Null: nothing.
  const SideFile* find(const std::string& soname);
  /// The facts of a library for the programs' loader; nullopt: it is none.
  std::optional<FileFacts> library(const std::string& path);

  OsWorld& world() { return world_; }
  SymbolReader& symbols() { return symbols_; }
  const LoaderProfile& loader() const { return loader_; }
  std::string glibc() const { return "2." + std::to_string(loader_.glibc_minor); }
  const LdSoCache& cache() const { return cache_; }
  /// The cache's lines that may be an MPI's.
  std::vector<LdSoCache::Line> mpi_lines() const;
  const std::vector<ContainerProgram>& programs() const { return programs_; }
  /// Every object of every closure once, the programs first.
  const std::vector<const LoadedObject*>& objects() const { return objects_; }

 private:
  Result<std::string> locate(const std::string& name);

  SymbolReader symbols_;
  OsWorld& world_;
  LoaderProfile loader_;
  LdSoCache cache_;
  std::vector<ContainerProgram> programs_;
  std::vector<const LoadedObject*> objects_;
  std::map<std::string, std::optional<SideFile>> found_;
};

/// A library of an MPI in the container: the one itself, or its Fortran or C++ bindings.
struct StackPart {
  std::string soname;
  std::string path;
  FileId id;
  MpiIdentity identity;            ///< family empty: bindings
  std::vector<std::string> names;  ///< it is asked for by, `soname` among them
  std::vector<std::string> needs;  ///< DT_NEEDED
  /// Of the MPI that the container's programs would load without us.
  bool is_own = true;
  /// In a directory that neither the programs nor ld.so.cache lead to: what others find there by
  /// tags of their own.
  bool is_copy = false;

  bool is_library() const { return !identity.family.empty(); }
};

/// The MPI libraries of the container.
struct ContainerStack {
  std::vector<StackPart> parts;      ///< libraries first; mostly one, more with several MPIs
  std::vector<std::string> missing;  ///< MPI libraries that programs need and the image lacks
  /// False: no program needs it by itself (a script, an interpreter, a shell that starts one); it
  /// is what the image's ld.so.cache has.
  bool needed_by_program = false;
  std::vector<std::string> watched;  ///< directories in which a copy that is added later shows
  /// Directories of copies that stay as they are, and why.
  std::map<std::string, std::string> stays;
  /// Directories, free of links, of parts that are no copies: the host's goes over those, whatever
  /// lies beside them.
  std::set<std::string> swapped;
  /// Copies in such a directory that should have stayed, by path, and why.
  std::map<std::string, std::string> mixed;

  const StackPart* own_library() const;  ///< the first; null: none
  bool empty() const { return own_library() == nullptr && missing.empty(); }
  const StackPart* part_of(const FileId& id) const;  ///< among the own
  /// Leaves out libraries of another ABI than `abi` and their bindings.
  void keep(const std::string& abi);
  /// One of the copies, in a directory that stays.
  bool has_to_stay(const StackPart& part) const;
  /// Fills in `swapped`.
  void note_swapped_directories(OsWorld& inside);
  /// The directory of `copy` stays for the reason `why`. False: that cannot be, or was so before.
  bool leave(const StackPart& copy, const std::string& why);
  /// Takes note of a file that may be one of them, asked for by `names`.
  void consider(ContainerSide& inside, const std::string& path, const FileFacts& file,
                const std::vector<std::string>& names, bool is_copy);
  /// Leaves out what is neither a library nor needs one, or another of their bindings.
  void drop_strangers();
};

/// What the programs and ld.so.cache lead to.
ContainerStack find_container_stack(ContainerSide& inside);
/// Adds the copies. False: not all of the image was looked at.
bool find_stack_copies(ContainerSide& inside, ContainerStack& stack);

}  // namespace heddle::policy
