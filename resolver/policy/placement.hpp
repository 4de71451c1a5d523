// SPDX-License-Identifier: MIT
#pragma once

#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "resolver/policy/glibc_choice.hpp"
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
  /// for the next.
  Trouble place(const SideChoice& sides, const GlibcChoice& glibc);

  /// Fills in what place() found: names, cache, binds, folders, environment, loads, warnings.
  void write(Decision& decision) const;

 private:
  Trouble try_to_place(const SideChoice& sides, const GlibcChoice& glibc);
  void write_changes(Decision& decision) const;
  void take_names(const SideChoice& sides, const GlibcChoice& glibc);
  void take_folder(const PluginFolder& folder);
  Trouble place_cache(const GlibcChoice& glibc);
  void write_cache();
  void bind_over(const std::string& path, const std::string& source, const std::string& why);
  void bind_known(const SideChoice& sides, const GlibcChoice& glibc);
  bool bind_strays(const Closure& closure);
  bool is_left_alone(const std::string& path, const std::string& soname);
  using StraysByOwner = std::map<std::size_t, std::vector<TagChanges::Stray>>;
  std::string change_tags(const Closure& closure, const StraysByOwner& strays);
  bool is_hosts(const std::string& path);
  std::string mixed_folder() const;
  std::string moved_file(const Closure& before, const Closure& after, SwappedWorld& world);
  bool bind_strays_of_copies(SwappedWorld& world, const LoaderProfile& loader);
  std::string misfit_of_copies(const Closure& closure) const;
  bool bind_strays_of_plugins(SwappedWorld& world, const LoaderProfile& loader);
  bool hide_strays(const SideChoice& sides);
  SwappedWorld::Placed placed() const;
  Trouble check(const Closure& before, const Closure& after, const SideChoice& sides);
  std::string stranded_part(SwappedWorld& world, const Closure& closure, const GlibcChoice& glibc);
  void check_plugins(SwappedWorld& world, const LoaderProfile& loader);
  void place_folders(const SideChoice& sides);

  ContainerSide& inside_;
  OsWorld& host_;
  ContainerStack stack_;
  const GlibcFamily& glibc_;
  const SearchOptions& search_;
  std::string mount_point_;
  RpathWay rpath_;

  std::optional<TagChanges> changes_;  ///< none: bind
  std::string not_changed_;            ///< why search paths stay as they are
  std::set<std::string> left_alone_;   ///< the image's, free of links, that changed tags led to
  std::map<std::string, std::string> names_;    ///< below the mount -> host's file
  std::map<std::string, std::string> sonames_;  ///< a name asked for -> name below the mount
  std::string cache_path_;
  std::string cache_target_;  ///< free of links; empty: the image has none, ld.so reads the mount's
  std::string cache_;
  std::map<std::string, FileBind> binds_;           ///< by target
  std::map<std::string, SwappedWorld::Made> made_;  ///< by target, each bound too
  std::set<std::string> found_by_tag_;              ///< targets that an RPATH or RUNPATH leads to
  std::vector<FolderBind> folders_;
  std::map<std::string, std::string> environment_;
  std::vector<std::pair<std::string, std::string>> loads_;
  std::vector<std::string> warnings_;
};

}  // namespace heddle
