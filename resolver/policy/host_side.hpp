// SPDX-License-Identifier: MIT
#pragma once

#include <map>
#include <set>
#include <string>
#include <vector>

#include "resolver/mpi/find_mpi.hpp"
#include "resolver/policy/container_side.hpp"
#include "resolver/policy/decide.hpp"

namespace heddle::policy {

/// What the host's MPI loads, read as this machine's ld.so would find it.
class HostSide {
 public:
  explicit HostSide(OsWorld& world) : symbols_(world), world_(world) {}
  /// This machine's; before anything is added.
  void set_loader(const LoaderProfile& loader) { loader_ = loader; }

  /// Adds the library `path` and all that ld.so loads for it; `stack_part` is that of the library
  /// itself. A library that is missing is no failure: missing() tells.
  Result<void> add(const std::string& path, const std::string& stack_part);
  /// Adds a directory's plugins with what each loads. One that cannot be read is data. False: they
  /// are there already.
  bool add_plugins(const PluginDirectory& directory);

  /// By soname; ld.so is not among them.
  const std::map<std::string, SideFile>& files() const { return files_; }
  const std::map<std::string, SideFile>& plugins() const { return plugins_; }
  /// "libx.so.1, needed by ...": the first.
  const std::string& missing() const { return missing_; }
  OsWorld& world() { return world_; }
  SymbolReader& symbols() { return symbols_; }

 private:
  void take(const Closure& closure);

  SymbolReader symbols_;
  OsWorld& world_;
  LoaderProfile loader_;
  std::map<std::string, SideFile> files_;
  std::map<std::string, SideFile> plugins_;
  std::set<std::string> plugin_directories_;
  std::string missing_;
  std::string home_;  ///< directory of the library added last
};

/// The host's glibc: ld.so, libc.so.6 and every other file of the same build.
struct GlibcFamily {
  LoaderProfile loader;
  std::string version;                    ///< "2.36"
  std::map<std::string, SideFile> files;  ///< by soname, ld.so's included
};
Result<GlibcFamily> read_glibc_family(OsWorld& world);

/// Whose glibc all programs of the container run with.
struct GlibcChoice {
  Side taken = Side::container;
  std::string why;
  std::vector<Verdict> verdicts{};
  std::vector<std::string> warnings{};
};

/// The container's, unless a file of the host wants a version that it does not define; then the
/// host's, all of it. glibc's files share GLIBC_PRIVATE, so that a mixture does not even start
/// (dl-call-libc-early-init.c). Fails where neither does for all.
Result<GlibcChoice> choose_glibc(const GlibcFamily& host, ContainerSide& inside,
                                 const std::vector<const SideFile*>& host_files);

}  // namespace heddle::policy
