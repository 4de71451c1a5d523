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
#include "resolver/policy/tag_changes.hpp"

namespace heddle {

/// Where the chosen files have to stand so that ld.so finds them, checked by resolving the
/// programs as if they stood there.
class Placement {
 public:
  Placement(ContainerSide& inside, OsWorld& host, const ContainerStack& stack,
            const GlibcFamily& glibc, const SearchOptions& search, std::string mount_point,
            RpathWay rpath)
      : inside_(inside),
        host_(host),
        inside_symbols_(inside.world()),
        host_symbols_(host),
        stack_(stack),
        glibc_(glibc),
        search_(search),
        mount_point_(std::move(mount_point)),
        rpath_(rpath) {}

  /// What still stands in the way after a try.
  struct Trouble {
    std::string flip;  ///< this library must be the host's: decide again
    std::string why;
    std::string conflict;  ///< it cannot work
  };
  /// With RpathWay::neutralise all search paths that need it are changed, or none: were only some,
  /// programs that nobody asked about would find the host's file for one library and the image's
  /// for the next. (Those that share a changed library with the named ones still may:
  /// docs/formats/container.md.)
  Trouble place(const SideChoice& sides, const GlibcChoice& glibc);

  /// Fills in what place() found: names, cache, binds, folders, environment, loads, warnings.
  void write(Decision& decision) const;

 private:
  Trouble try_to_place(const SideChoice& sides, const GlibcChoice& glibc);
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
  void write_changes(Decision& decision) const;
  SwappedWorld::Placed placed() const;

  // placement_strays.cpp: files that are found without ld.so.cache
  void bind_over(const std::string& path, const std::string& source, const std::string& why);
  void bind_known(const SideChoice& sides, const GlibcChoice& glibc);
  bool bind_strays(const Closure& closure);
  bool is_left_alone(const std::string& path, const std::string& soname);
  using StraysByOwner = std::map<std::size_t, std::vector<TagChanges::Stray>>;
  std::string change_tags(const Closure& closure, const StraysByOwner& strays);
  bool is_hosts(const std::string& path);
  std::string mixed_folder() const;
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
  RpathWay rpath_;

  std::optional<TagChanges> changes_;  ///< none: bind
  std::string not_changed_;            ///< why search paths stay as they are
  std::set<std::string> left_alone_;   ///< the image's, free of links, that tags led to
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
