// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "fsgen/print_env.hpp"

namespace heddle {

/// How the program gets to see the map.
enum class Via : std::uint8_t {
  best,           ///< the first of the following that works here
  private_mount,  ///< in a mount namespace of APP's, for users within a user namespace
  fusermount,     ///< a mount that all see, by the setuid program fusermount3
  direct,         ///< no FUSE: guided to the original files
};

enum class LoaderKind : std::uint8_t {
  audit,        ///< rtld-audit: exact, for every kind of search path
  environment,  ///< LD_LIBRARY_PATH: where auditing cannot work; loses against DT_RPATH
};

/// The command line of fs-gen.
struct GenOptions {
  std::string map;        ///< --map: use this one, resolve nothing
  std::string out;        ///< --out: keep the map here
  bool learn = false;     ///< --learn: the map of --out also holds what this run loads later
  std::string learn_log;  ///< where the run's processes write that; empty: nowhere
  std::vector<std::string> plugin_directories;
  bool print_env = false;  ///< --print-env: `command` is MAP and DIR
  ShellKind shell = ShellKind::sh;
  std::string json_file;
  std::string serve = "all";
  std::string stage;         ///< fs-mount --stage, absolute; empty: nothing is staged
  std::string stage_budget;  ///< empty: fs-mount's own
  Via via = Via::best;
  LoaderKind loader = LoaderKind::audit;
  bool share = true;  ///< one mount for all fs-gens of this user and map
  bool quiet = false;
  unsigned compare_runs = 0;
  std::vector<std::string> command;  ///< APP ARGS
};

/// What fs-mount is told of them.
std::vector<std::string> mount_options(const GenOptions& options);

/// The options, or the exit status when there is nothing more to do (--help, a usage error, said).
struct ParsedGenOptions {
  std::optional<GenOptions> options;
  int exit_status = 0;
};
ParsedGenOptions parse_gen_options(int argc, const char* const* argv);

}  // namespace heddle
