// SPDX-License-Identifier: MIT
#pragma once

// Ranks in containers: one for each, started by the engine's own command in place of the rank's
// program. How an engine is called is a template, share/heddle/containers/BACKEND.

#include <string>
#include <vector>

#include "base/result.hpp"
#include "launch/profile.hpp"

namespace heddle::launch {

struct RankContainer {
  std::string image;
  std::string backend;             ///< empty: auto
  std::string source;              ///< as Profile::Container's
  std::string hooks;               ///< a directory of podman's with fs-hook's file; empty: none
  std::string mpi;                 ///< the host's MPI library for it; empty: what fs-hook finds
  std::vector<std::string> files;  ///< as Profile's
  std::vector<std::string> names;  ///< variables of the rank, besides the launchers'
};

/// Sets the backend of `auto`: podman, or bare for a directory where there is no podman. Failure:
/// there is no engine or template of that name. Prints a line if the template is untested.
Result<void> prepare_containers(RankContainer& container);

/// The command that runs `path` with `argv` in a container. Failure: a path that the engine cannot
/// be given.
Result<std::vector<std::string>> container_command(const RankContainer& container,
                                                   const std::string& path,
                                                   const std::vector<std::string>& argv);

/// Executes container_command(), with PMI's descriptor as number 3, the only one that the engine
/// passes on. Returns the exit status when that fails.
int enter_container(const RankContainer& container, const std::string& path,
                    const std::vector<std::string>& argv);

}  // namespace heddle::launch
