// SPDX-License-Identifier: MIT
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "resolver/search/ld_so_cache.hpp"
#include "resolver/search/os_world.hpp"
#include "resolver/search/search.hpp"

namespace heddle::policy {

/// Lines of an image's ld.so.cache that may be an MPI's and are looked at; a real one has some
/// dozens, a hostile one millions.
inline constexpr std::size_t kMostMpiLines = 4096;

/// A program in the container with what its own ld.so loads for it.
struct ContainerProgram {
  std::string path;
  Closure closure;
};

/// A library of the container.
struct ContainerFile {
  std::string path;
  FileFacts file;
};

/// The container's root as its programs see it.
class ContainerSide {
 public:
  explicit ContainerSide(OsWorld& world) : world_(world) {}

  /// Follows #! lines. nullopt, with `reason`: nothing to swap (a static program). Fails when it is
  /// not there or its loader is none of glibc's.
  Result<bool> add_program(const std::string& name, const SearchOptions& options,
                           std::string& reason);

  /// What ld.so would find for `soname`: in a program's closure, in the cache, in the default
  /// directories; null: nothing.
  const ContainerFile* find(const std::string& soname);

  OsWorld& world() { return world_; }
  const LoaderProfile& loader() const { return loader_; }
  const LdSoCache& cache() const { return cache_; }
  const std::vector<ContainerProgram>& programs() const { return programs_; }
  /// Every object of every closure once, the programs first.
  const std::vector<const LoadedObject*>& objects() const { return objects_; }

 private:
  Result<std::string> locate(const std::string& name);

  OsWorld& world_;
  LoaderProfile loader_;
  LdSoCache cache_;
  std::vector<ContainerProgram> programs_;
  std::vector<const LoadedObject*> objects_;
  std::map<std::string, std::optional<ContainerFile>> found_;
};

}  // namespace heddle::policy
