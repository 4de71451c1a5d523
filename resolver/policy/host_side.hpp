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

/// The closure of the host's MPI by this machine's ld.so.
class HostSide {
 public:
  explicit HostSide(OsWorld& world) : symbols_(world), world_(world) {}
  /// This machine's; call it first.
  void set_loader(const LoaderProfile& loader) { loader_ = loader; }

  /// Adds the closure of the library `path`; `stack_part` is of the library itself. A missing
  /// library is no failure, but in missing().
  Result<void> add(const std::string& path, const std::string& stack_part);
  /// Adds the closures of a directory's plugins. An unreadable one is data. False: no news.
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

/// The host's glibc: ld.so, libc.so.6 and the other files of one build.
struct GlibcFamily {
  LoaderProfile loader;
  std::string version;                    ///< "2.36"
  std::map<std::string, SideFile> files;  ///< by soname, ld.so's included
};
Result<GlibcFamily> read_glibc_family(OsWorld& world);

/// The glibc of all programs in the container.
struct GlibcChoice {
  Side taken = Side::container;
  std::string why;
  std::vector<SonameChoice> choices{};
  std::vector<std::string> warnings{};
};

/// The container's, unless a file of the host needs a version that it does not define; then all
/// files of the host's. glibc's files share GLIBC_PRIVATE: a mixture does not start
/// (dl-call-libc-early-init.c). Fails when neither satisfies all.
Result<GlibcChoice> choose_glibc(const GlibcFamily& host, ContainerSide& inside,
                                 const std::vector<const SideFile*>& host_files);

}  // namespace heddle::policy
