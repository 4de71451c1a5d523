// SPDX-License-Identifier: MIT
#pragma once

#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "resolver/policy/container_stack.hpp"
#include "resolver/policy/host_side.hpp"

namespace heddle::policy {

/// One soname with both sides' files.
struct Pick {
  HostFile host;
  std::optional<ContainerFile> container;
  Side taken = Side::container;
  Rule rule = Rule::needs;
  std::string why;
  std::vector<std::string> names;  ///< it is asked for by: the soname first
  bool fixed = false;              ///< no second change of mind
  bool open = false;               ///< neither file offers all that the other does
};

/// Decides for each library that the host's MPI loads, glibc left out, whose file is taken.
class SideChoice {
 public:
  SideChoice(HostSide& host, ContainerSide& inside, SymbolReader& inside_symbols,
             const ContainerStack& stack)
      : host_(host), inside_(inside), inside_symbols_(inside_symbols), stack_(stack) {}

  /// A library that is the host's whatever the container has, and its names there.
  void force(const std::string& soname, std::vector<std::string> names,
             std::optional<ContainerFile> container, const std::string& why);
  /// Decides for everything that `host` has by now, and follows plugin directories of what is the
  /// host's. Fails where that cannot work, naming both sides.
  Result<void> settle(const std::vector<PluginDirectory>& directories);
  /// Takes the host's file after all, if there is one that was not decided on already.
  bool flip_to_host(const std::string& name, const std::string& why);

  /// By soname: those that something of the host's needs.
  std::vector<const Pick*> picks() const;
  const Pick* find(const std::string& name) const;
  const std::vector<PluginDirectory>& directories() const { return directories_; }
  const std::vector<std::string>& warnings() const { return warnings_; }
  /// All files of the host that would be in the container: libraries and plugins.
  std::vector<const HostFile*> taken_files() const;

 private:
  struct User {
    std::string path;
    const ElfFacts* elf;
    Pick* pick;  ///< null: a plugin, or an object of the container's programs
    bool is_plugin;
  };
  void compare(Pick& pick);
  bool add_directories(const std::vector<PluginDirectory>& directories);
  std::vector<User> users();
  Result<bool> check_versions();
  Result<bool> check_open(Pick& pick);
  void flip(Pick& pick, Side side, const std::string& why);
  /// Whether its directory is among directories().
  bool is_served(const std::string& plugin) const;
  std::set<std::string> reachable() const;
  Pick* find(const std::string& name);

  HostSide& host_;
  ContainerSide& inside_;
  SymbolReader& inside_symbols_;
  const ContainerStack& stack_;
  std::map<std::string, Pick> picks_;
  std::map<std::string, std::string> by_name_;
  std::vector<PluginDirectory> directories_;
  std::vector<std::string> warnings_;
};

}  // namespace heddle::policy
