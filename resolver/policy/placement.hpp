// SPDX-License-Identifier: MIT
#pragma once

#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "resolver/policy/cache_place.hpp"
#include "resolver/policy/glibc_choice.hpp"
#include "resolver/policy/plugin_places.hpp"
#include "resolver/policy/served_names.hpp"
#include "resolver/policy/side_choice.hpp"
#include "resolver/policy/swapped_world.hpp"

namespace heddle {

/// Where the chosen files have to stand so that ld.so finds them, checked by resolving the
/// programs as if they stood there.
class Placement {
 public:
  Placement(ContainerSide& inside, OsWorld& host, const ContainerStack& stack,
            const GlibcFamily& glibc, const SearchOptions& search, std::string mount_point)
      : inside_(inside),
        host_(host),
        inside_symbols_(inside.world()),
        host_symbols_(host),
        stack_(stack),
        glibc_(glibc),
        search_(search),
        mount_point_(std::move(mount_point)) {}

  /// What still stands in the way after a try.
  struct Trouble {
    std::string flip;  ///< this library must be the host's: decide again
    std::string why;
    std::string conflict;  ///< it cannot work
  };
  Trouble place(const SideChoice& sides, const GlibcChoice& glibc);

  /// Fills in what place() found: names, cache, binds, folders, environment, loads, warnings.
  void write(Decision& decision) const;

 private:
  void begin(const SideChoice& sides, const GlibcChoice& glibc);
  std::string resolve_programs(SwappedWorld& world, const LoaderProfile& loader,
                               std::vector<Closure>& after, bool& more);
  Trouble judge(const std::vector<Closure>& after, SwappedWorld& world, const SideChoice& sides,
                const GlibcChoice& glibc);
  Trouble check(const Closure& before, const Closure& after, const SideChoice& sides);
  void conclude(const Closure& first, SwappedWorld& world, const LoaderProfile& loader,
                const SideChoice& sides);
  void warn_of_copies();
  void write_cache();
  SwappedWorld::Placed placed() const;

  // placement_strays.cpp: files that are found without ld.so.cache
  void bind_over(const std::string& path, const std::string& source, const std::string& why);
  void bind_known(const SideChoice& sides, const GlibcChoice& glibc);
  bool bind_strays(const Closure& closure);
  bool is_hosts(const std::string& path);
  bool bind_strays_of_plugins(SwappedWorld& world, const LoaderProfile& loader);

  // placement_copies.cpp: folders that the host's files must not simply go into
  bool bind_strays_of_copies(SwappedWorld& world, const LoaderProfile& loader,
                             const SideChoice& sides);
  bool bind_strays_of_copy(const StackPart& part, SwappedWorld& world, const LoaderProfile& loader,
                           const SideChoice& sides, std::string& why);
  std::string misfit_of_copies(const Closure& closure, const SideChoice& sides);
  std::string misfit_for_host(const Closure& closure, SwappedWorld& world, const SideChoice& sides);
  bool hide_strays(const SideChoice& sides);

  ContainerSide& inside_;
  OsWorld& host_;
  SymbolReader inside_symbols_;
  SymbolReader host_symbols_;
  ContainerStack stack_;
  const GlibcFamily& glibc_;
  const SearchOptions& search_;
  std::string mount_point_;

  ServedNames names_;
  CachePlace cache_place_;
  std::string cache_;                               ///< bytes
  std::map<std::string, FileBind> binds_;           ///< by target
  std::map<std::string, SwappedWorld::Made> made_;  ///< by target, each bound too
  std::set<std::string> found_by_tag_;              ///< targets that an RPATH or RUNPATH leads to
  PluginPlaces plugins_;
  std::vector<std::pair<std::string, std::string>> loads_;
  std::vector<std::string> warnings_;
};

}  // namespace heddle
