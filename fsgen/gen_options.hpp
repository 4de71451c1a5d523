// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace heddle {

/// How APP gets the map's libraries.
enum class Via : std::uint8_t {
  best,           ///< the first of the following that works here
  private_mount,  ///< in a mount namespace of APP's, for users within a user namespace
  fusermount,     ///< a mount for all of the user's processes, by the setuid program fusermount3
  direct,         ///< no FUSE: guided to the original files
};

enum class LoaderKind : std::uint8_t {
  audit,        ///< rtld-audit: exact, for every kind of search path
  environment,  ///< LD_LIBRARY_PATH: where auditing cannot work; loses against DT_RPATH
};

/// The language of --print-env.
enum class ShellKind : std::uint8_t {
  sh,          ///< POSIX, bash, zsh: for eval
  fish,        ///< for source
  modulefile,  ///< Tcl, of Environment Modules and Lmod
  json,
};

/// The command line of fs-gen.
struct GenOptions {
  std::string map;       ///< --map: resolve nothing
  std::string fallback;  ///< --fallback: another copy of a bundle
  std::string out;       ///< --out: keep the map here
  bool learn = false;    ///< --learn: the map of --out also holds what this run loads later
  std::vector<std::string> plugin_directories;
  bool print_env = false;  ///< --print-env: `command` is MAP and DIR
  ShellKind shell = ShellKind::sh;
  std::string json_file;
  std::string serve;                    ///< empty: as judge_files() says
  std::vector<std::string> slow, fast;  ///< directories, however their file systems are judged
  std::vector<std::string> trees;       ///< --tree
  std::vector<std::string> tree_excludes;
  std::string python = "auto";  ///< --python: or "off", or an interpreter
  std::string stage;            ///< fs-mount --stage, absolute; empty: nothing is staged
  std::string stage_budget;     ///< empty: fs-mount's own
  std::string log;              ///< of a mount's daemon that this run starts; empty: none
  Via via = Via::best;
  LoaderKind loader = LoaderKind::audit;
  bool share = true;       ///< one mount for all fs-gens of this user and map
  bool first_rank = true;  ///< of a job: it alone warns
  bool cache = true;
  bool learns = true;    ///< into the cache
  bool explain = false;  ///< --explain: run nothing
  bool doctor = false;   ///< --doctor: run nothing of the user's
  bool quiet = false;
  unsigned compare_runs = 0;
  std::vector<std::string> command;  ///< APP ARGS

  /// Whether APP needs a mount only where its files are slow.
  bool may_go_direct() const {
    return (via == Via::best || via == Via::direct) && stage.empty() && loader == LoaderKind::audit;
  }
  /// Whether directory trees can be served over their own paths.
  bool may_have_trees() const {
    return (via == Via::best || via == Via::private_mount) && loader == LoaderKind::audit;
  }
  /// Whether the cache may have the map: no option asks for another one.
  bool may_be_cached() const {
    return cache && map.empty() && out.empty() && plugin_directories.empty() && may_go_direct() &&
           compare_runs == 0;
  }
};

/// fs-mount's part of the options.
std::vector<std::string> mount_options(const GenOptions& options, const std::string& serve);

/// The options, or the exit status after --help or a reported usage error.
struct ParsedGenOptions {
  std::optional<GenOptions> options;
  int exit_status = 0;
};
ParsedGenOptions parse_gen_options(int argc, const char* const* argv);

/// fs-gen --print-env, print_env.cpp: writes to stdout what a script sets so that its programs are
/// guided through the mount of the map command[0] at the directory command[1]. Result: the exit
/// status; exit_no when there is no such mount.
int print_env(const GenOptions& options);

}  // namespace heddle
