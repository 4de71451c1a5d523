// SPDX-License-Identifier: MIT
#pragma once

#include <string>
#include <vector>

#include "resolver/mpi/find_mpi.hpp"

namespace heddle {

struct BuildCommand {
  std::string out;
  std::vector<std::string> apps;
  std::vector<std::string> plugin_directories;
  bool allow_missing = false;
  bool json = false;
  std::string mpi;  ///< auto, none or a prefix; empty: none, and auto with `into`
  // For a container:
  std::string into;  ///< its root; empty: a map for this machine's own programs
  std::vector<std::string> programs;
  std::string mount_point = "/dev/heddle";
  std::string library_path;
  std::vector<std::string> roots;
};
struct ExplainCommand {
  std::string map;
  bool json = false;
};
struct ShowCommand {
  std::string map;
  bool json = false;
};
struct LookupCommand {
  std::string map;
  std::string name;
  std::string view;
  bool json = false;
};
struct WhyCommand {
  std::string app;
  std::string name;  ///< empty: every name that was searched for
  bool json = false;
};
struct TreeCommand {
  std::string app;
  bool paths = false;
  bool json = false;
};
struct MpiCommand {
  std::string prefix;
  std::string root;     ///< a soname or path: this library instead of MPI
  std::string program;  ///< only the MPI that it loads, with what two ranks of it open
  bool list = false;
  bool json = false;
};
struct VerifyCommand {
  std::string map;
  bool files_only = false;  ///< no search is repeated
  bool json = false;
};

struct PushCommand {
  std::string map;
  std::string reference;
};
struct PullCommand {
  std::string reference;
  std::string out;
};

/// Each prints its data to stdout and returns an ExitCode; set-up failures are thrown as Error.
int run_build(const BuildCommand& command);
/// `build --into`.
int run_container(const BuildCommand& command);
int run_explain(const ExplainCommand& command);
int run_show(const ShowCommand& command);
int run_lookup(const LookupCommand& command);
int run_why(const WhyCommand& command);
int run_tree(const TreeCommand& command);
int run_mpi(const MpiCommand& command);
int run_verify(const VerifyCommand& command);
int run_push(const PushCommand& command);
int run_pull(const PullCommand& command);

/// The host's MPI installations that `--mpi WANTED` means.
std::vector<MpiInstall> find_wanted_mpi(OsWorld& world, const std::string& wanted);

}  // namespace heddle
