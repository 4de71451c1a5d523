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
  std::vector<std::string> names;  ///< in DT_NEEDED, the soname first
  Side taken = Side::container;
  Rule rule = Rule::needs;
  std::string why{};
  bool fixed = false;  ///< the side does not change any more
  bool open = false;   ///< neither file offers all of the other

  /// Null: that side has none.
  const SideFile* file(Side side) const {
    return side == Side::host ? &host : container ? &*container : nullptr;
  }
};

/// Chooses the side for each library that the host's MPI loads, except glibc's.
class SideChoice {
 public:
  /// `directories`: of the host's plugins.
  SideChoice(HostSide& host, ContainerSide& inside, const ContainerStack& stack,
             std::vector<PluginDirectory> directories)
      : host_(host), inside_(inside), stack_(stack), all_directories_(std::move(directories)) {}

  /// Takes a library from the host in any case; `names`: in DT_NEEDED.
  void force(const std::string& soname, std::vector<std::string> names, const std::string& why);
  /// Decides for all libraries of `host`, and adds those of plugin directories of libraries that
  /// are taken from it. Fails, naming both sides, when neither file works.
  Result<void> settle();
  /// Changes to the host's file, if there is one and the side is not fixed.
  bool flip_to_host(const std::string& name, const std::string& why);

  /// By soname: those that the host's files need.
  std::vector<const Pick*> picks() const;
  const Pick* find(const std::string& name) const;
  /// Plugin directories of the libraries taken from the host.
  std::vector<PluginDirectory> directories() const;
  const std::vector<std::string>& warnings() const { return warnings_; }
  /// All files taken from the host: libraries and plugins.
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
  bool add_new_libraries();
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
  std::map<std::string, std::string> sonames_;  ///< by names in DT_NEEDED
  std::vector<std::string> warnings_;
};

struct PlacementFacts {
  ContainerSide& inside;
  HostSide& host;
  ContainerStack& stack;  ///< gets its `preserved` and `mixed`
  const GlibcFamily& glibc;
  const SearchOptions& search;
  std::string mount_point;
};

/// Finds a side and a place for each soname with which the programs, resolved again, work:
/// libraries change to the host's one by one, and none changes back. Fills in the decision. Fails
/// in a line that names both sides.
Result<void> solve(const PlacementFacts& facts, SideChoice& sides, Decision& out);

}  // namespace heddle::policy
