// SPDX-License-Identifier: MIT
#pragma once

#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "resolver/mpi/mpi_family.hpp"
#include "resolver/policy/versions.hpp"
#include "resolver/search/ld_so_cache.hpp"
#include "resolver/search/search.hpp"

namespace heddle::policy {

/// A program in the container, with its closure by the container's own ld.so.
struct ContainerProgram {
  std::string path;
  Closure closure;
};

/// A library of either side.
struct SideFile {
  std::string soname;  ///< of a plugin of the host: its name below the mount
  std::string path;    ///< canonical on the host
  FileFacts file;
  /// Its part of the host's MPI stack ("UCX", "libfabric"); empty: a system or toolchain library.
  std::string stack_part{};
};

/// The container's root as its programs see it.
class ContainerSide {
 public:
  /// `path`: the container's PATH.
  ContainerSide(OsWorld& world, std::string path)
      : symbols_(world), world_(world), path_(std::move(path)) {}

  /// Follows #! lines. False, with `reason`: nothing to swap (a static program). Fails when the
  /// program does not exist or its loader is not glibc's.
  Result<bool> add_program(const std::string& name, const SearchOptions& options,
                           std::string& reason);

  /// The file that ld.so would find for `soname`: in a program's closure, ld.so.cache or the
  /// default directories; ld.so itself for its own soname. Null: none.
  const SideFile* find(const std::string& soname);
  /// The facts of a library that the programs' loader accepts; nullopt: it does not.
  std::optional<FileFacts> library(const std::string& path);

  OsWorld& world() { return world_; }
  SymbolReader& symbols() { return symbols_; }
  const LoaderProfile& loader() const { return loader_; }
  std::string glibc() const { return "2." + std::to_string(loader_.glibc_minor); }
  const LdSoCache& cache() const { return cache_; }
  /// The absolute directories of LD_LIBRARY_PATH, with a trailing slash.
  std::vector<std::string> library_path();
  /// The cache's lines that may be an MPI's.
  std::vector<LdSoCache::Line> mpi_lines() const;
  /// Whether one of the programs is Python, whose modules are programs too.
  bool has_python() const;
  const std::vector<ContainerProgram>& programs() const { return programs_; }
  /// Every object of every closure once, the programs first.
  const std::vector<const LoadedObject*>& objects() const { return objects_; }

 private:
  Result<std::string> locate(const std::string& name);

  SymbolReader symbols_;
  OsWorld& world_;
  std::string path_;
  LoaderProfile loader_;
  LdSoCache cache_;
  std::string library_path_;
  std::vector<ContainerProgram> programs_;
  std::vector<const LoadedObject*> objects_;
  std::map<std::string, std::optional<SideFile>> found_;
};

/// A library of an MPI in the container: its C library, or its Fortran or C++ bindings.
struct StackPart {
  std::string soname;
  std::string path;
  FileId id;
  MpiIdentity identity;            ///< family empty: bindings
  std::vector<std::string> names;  ///< in DT_NEEDED, `soname` included
  std::vector<std::string> needs;  ///< DT_NEEDED
  bool is_own = true;              ///< of the MPI that the container's programs load without heddle
  bool is_copy = false;  ///< in a private directory, found only by RPATH or RUNPATH of others

  bool is_library() const { return !identity.family.empty(); }
};

/// The MPI libraries of the container.
struct ContainerStack {
  std::vector<StackPart> parts;      ///< libraries first; mostly one, more with several MPIs
  std::vector<std::string> missing;  ///< MPI libraries that programs need and the image lacks
  /// False: no program has it in its closure (a script, an interpreter, a shell that starts one);
  /// it is the MPI of the image's ld.so.cache.
  bool needed_by_program = false;
  /// Directories of copies that are not replaced, with the reason.
  std::map<std::string, std::string> preserved;
  /// Canonical directories of parts that are no copies: the host's files replace those, and all
  /// beside them.
  std::set<std::string> swapped;
  /// Copies in such a directory that should not be replaced, by path, with the reason.
  std::map<std::string, std::string> mixed;

  const StackPart* own_library() const;  ///< the first; null: none
  bool empty() const { return own_library() == nullptr && missing.empty(); }
  const StackPart* part_of(const FileId& id) const;  ///< among those with is_own
  /// Removes libraries of another ABI than `abi` and their bindings.
  void keep(const std::string& abi);
  /// Whether `part` is a copy in one of the directories `preserved`.
  bool is_preserved(const StackPart& part) const;
  /// Fills in `swapped`.
  void note_swapped_directories(OsWorld& inside);
  /// Adds the directory of `copy` to `preserved`. False: it must be replaced, or was there before.
  bool preserve(const StackPart& copy, const std::string& why);
  /// Adds a file that may be a part; `names`: in DT_NEEDED.
  void consider(ContainerSide& inside, const std::string& path, const FileFacts& file,
                const std::vector<std::string>& names, bool is_copy);
  /// Removes parts that are neither an MPI library nor need one, or another binding.
  void drop_unrelated();
};

/// The result of a search through the image's own file system.
struct ImageSearch {
  std::vector<std::string> libraries;  ///< files that may be an MPI library, and links to them
  std::vector<std::string> modules;    ///< extension modules that need one, if a program is Python
  /// Directories that most likely change when one is added: shallow ones, where a prefix begins,
  /// and those with libraries; of too many, those nearest to the root. Each ends in a slash.
  std::vector<std::string> watched;
  bool complete = true;  ///< false: a limit was reached, or a directory is unreadable
};
ImageSearch search_image(ContainerSide& inside);

/// The MPI that the programs and ld.so.cache lead to.
ContainerStack find_container_stack(ContainerSide& inside);
/// Adds the copies among `libraries`.
void add_stack_copies(ContainerSide& inside, ContainerStack& stack,
                      const std::vector<std::string>& libraries);

}  // namespace heddle::policy
