// SPDX-License-Identifier: MIT
#pragma once

#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "resolver/map/map_content.hpp"
#include "resolver/mpi/find_mpi.hpp"
#include "resolver/search/search.hpp"
#include "ship/bundle/bundle_format.hpp"

namespace heddle {

/// The command line: each sub-command binds its options to some of these.
struct Command {
  std::string map;  ///< read, or by `build` and `pull` written
  bool json = false;
  std::string name;         ///< lookup, why: a library; empty for why: all of them
  std::string view;         ///< lookup
  std::string app;          ///< why, tree
  bool paths = false;       ///< tree
  bool files_only = false;  ///< verify: no search is repeated
  std::string reference;    ///< push, pull
  bool no_cache = false;    ///< pull
  std::string engine;       ///< explain: print the options of this container engine
  // mpi:
  std::string prefix;
  std::string root;     ///< a soname or path: this library instead of MPI
  std::string program;  ///< only the MPI that it loads, with the files that two ranks open
  bool list = false;    ///< pack: print what is in a bundle
  // pack:
  std::string out;
  std::string trace;
  std::string add;  ///< a report of fs-gen --json or fs-mount --stats --json
  std::vector<std::string> include;
  // build:
  std::vector<std::string> apps;
  std::vector<std::string> plugin_directories;
  bool allow_missing = false;
  std::vector<std::string> trees;     ///< --tree
  std::vector<std::string> excluded;  ///< --tree-exclude
  std::string python = "off";         ///< auto, off or an interpreter
  std::string mpi;                    ///< auto, none or a prefix; empty: none, and auto with `into`
  // build for a container:
  std::string into;  ///< its root; empty: a map for this machine's own programs
  std::vector<std::string> programs;
  std::string mount_point = "/dev/heddle";
  std::string path = "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin";
  std::string library_path;
  std::string preload;
  std::vector<std::string> roots;
};

/// Each prints its data to stdout and returns an ExitCode; set-up failures are thrown as Error.
int run_build(const Command& command);
int run_container(const Command& command);  ///< by run_build(): `build --into`
int run_explain(const Command& command);
int run_show(const Command& command);
int run_lookup(const Command& command);
int run_why(const Command& command);
int run_tree(const Command& command);
int run_mpi(const Command& command);
int run_verify(const Command& command);
int run_pack(const Command& command);
int run_push(const Command& command);
int run_pull(const Command& command);

/// All of the map at `path`.
MapContent read_map(const std::string& path);
/// The host's MPI installations of `--mpi WANTED`.
std::vector<MpiInstall> find_wanted_mpi(OsWorld& world, const std::string& wanted);

using Json = nlohmann::ordered_json;

/// A bundle's size and id.
Json bundle_json(const BundleIndex& bundle);

/// `value` as text with its strings, which may have any bytes, converted by to_json_text(). Keys
/// must be UTF-8.
std::string to_text(Json value);
void print_json(Json value);

/// A map for `show --json`: only what the same input reproduces, without dev, ino, ctime and host
/// name.
Json to_json(const MapContent& content);
Json to_json(const MapObject& object);

/// A library in every `--json`: soname, path, found_by, needed_by, requested_as.
Json library_json(const std::string& soname, const std::string& path, const std::string& found_by,
                  const std::string& needed_by, const std::string& requested_as);
Json library_json(const Closure& closure, std::size_t index);

}  // namespace heddle
