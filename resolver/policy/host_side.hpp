// SPDX-License-Identifier: MIT
#pragma once

#include <map>
#include <string>
#include <vector>

#include "resolver/mpi/find_mpi.hpp"
#include "resolver/policy/symbol_reader.hpp"

namespace heddle {

/// A library of the host that may go into the container, or a plugin.
struct HostFile {
  std::string soname;  ///< of a plugin: its name below the mount
  std::string path;    ///< free of symbolic links
  FileFacts file;
  /// What of the MPI stack it is ("UCX", "libfabric"); empty: a system or toolchain library.
  std::string stack_part;
};

/// What the host's MPI loads, read as this machine's ld.so would find it.
class HostSide {
 public:
  explicit HostSide(OsWorld& world) : symbols_(world), world_(world) {}
  /// This machine's; before anything is added.
  void set_loader(const LoaderProfile& loader) { loader_ = loader; }

  /// Adds the library `path` and all that ld.so loads for it; `stack_part` is that of the library
  /// itself. A library that is missing is no failure: missing() tells.
  Result<void> add(const std::string& path, const std::string& stack_part);
  /// Adds a folder's plugins with what each loads. One that cannot be read is data.
  void add_plugins(const PluginFolder& folder);

  /// By soname; ld.so is not among them.
  const std::map<std::string, HostFile>& files() const { return files_; }
  const std::map<std::string, HostFile>& plugins() const { return plugins_; }
  /// "libx.so.1, needed by ..."
  const std::vector<std::string>& missing() const { return missing_; }
  OsWorld& world() { return world_; }
  SymbolReader& symbols() { return symbols_; }

 private:
  void take(const Closure& closure, std::size_t first);

  SymbolReader symbols_;
  OsWorld& world_;
  LoaderProfile loader_;
  std::map<std::string, HostFile> files_;
  std::map<std::string, HostFile> plugins_;
  std::vector<std::string> missing_;
  std::string home_;  ///< folder of the library added last
};

/// Which part of an MPI stack a library is, told from what it exports; empty: none.
std::string stack_part_of(const ElfFacts& facts);

/// The host's glibc: ld.so, libc.so.6 and every other file of the same build.
struct GlibcFamily {
  LoaderProfile loader;
  std::string version;                    ///< "2.36"
  std::map<std::string, HostFile> files;  ///< by soname, ld.so's included
};
Result<GlibcFamily> read_glibc_family(OsWorld& world);

/// "libc.so.6" and the others that one build of glibc installs (gnu/lib-names.h), ld.so left out.
const std::vector<std::string>& glibc_sonames();

}  // namespace heddle
