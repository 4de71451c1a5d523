// SPDX-License-Identifier: MIT
#pragma once

#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "resolver/policy/host_side.hpp"

namespace heddle::policy {

/// One soname with both sides' files.
struct Pick {
  SideFile host;
  std::optional<SideFile> container;
  std::vector<std::string> names;  ///< it is asked for by: the soname first
  Side taken = Side::container;
  Rule rule = Rule::needs;
  std::string why{};
  bool fixed = false;  ///< no second change of mind
  bool open = false;   ///< neither file offers all that the other does

  /// Null: that side has none.
  const SideFile* file(Side side) const {
    return side == Side::host ? &host : container ? &*container : nullptr;
  }
};

/// Decides for each library that the host's MPI loads, glibc left out, whose file is taken.
class SideChoice {
 public:
  /// `directories`: of plugins of the host's libraries.
  SideChoice(HostSide& host, ContainerSide& inside, const ContainerStack& stack,
             std::vector<PluginDirectory> directories)
      : host_(host), inside_(inside), stack_(stack), all_directories_(std::move(directories)) {}

  /// A library that is the host's whatever the container has, and its names there.
  void force(const std::string& soname, std::vector<std::string> names, const std::string& why);
  /// Decides for everything that `host` has by now, and follows plugin directories of what is the
  /// host's. Fails where that cannot work, naming both sides.
  Result<void> settle();
  /// Takes the host's file after all, if there is one that was not decided on already.
  bool flip_to_host(const std::string& name, const std::string& why);

  /// By soname: those that something of the host's needs.
  std::vector<const Pick*> picks() const;
  const Pick* find(const std::string& name) const;
  /// Plugin directories of the libraries that are the host's.
  std::vector<PluginDirectory> directories() const;
  const std::vector<std::string>& warnings() const { return warnings_; }
  /// All files of the host that would be in the container: libraries and plugins.
  std::vector<const SideFile*> taken_files() const;

 private:
  struct User {
    const std::string& path;
    const ElfFacts& elf;
    Pick* pick = nullptr;  ///< null: a plugin, or an object of the container's programs
    bool is_plugin = false;
  };
  SymbolReader& symbols(Side side) {
    return side == Side::host ? host_.symbols() : inside_.symbols();
  }
  Pick* find(const std::string& name);
  void compare(Pick& pick);
  bool take_news();
  std::vector<User> users();
  Result<bool> check_versions();
  Result<bool> check_open(Pick& pick);
  void flip(Pick& pick, Side side, const std::string& why);
  std::vector<const SideFile*> plugins() const;

  HostSide& host_;
  ContainerSide& inside_;
  const ContainerStack& stack_;
  const std::vector<PluginDirectory> all_directories_;
  std::map<std::string, Pick> picks_;           ///< by soname
  std::map<std::string, std::string> sonames_;  ///< by the names asked for
  std::vector<std::string> warnings_;
};

/// What a decision is made of.
struct PlacementFacts {
  ContainerSide& inside;
  HostSide& host;
  ContainerStack& stack;  ///< placing shows which directories of it stay
  const GlibcFamily& glibc;
  const SearchOptions& search;
  std::string mount_point;
};

/// Solves for whose file each soname is and where it stands, so that the programs, resolved again
/// as if all were in place, load it: libraries go to the host one after the other, and none comes
/// back. Fills in the decision. Fails where that cannot work, in a line that names both sides.
Result<void> solve(const PlacementFacts& facts, SideChoice& sides, Decision& out);

}  // namespace heddle::policy
