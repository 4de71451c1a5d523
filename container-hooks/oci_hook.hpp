// SPDX-License-Identifier: MIT
#pragma once

#include <chrono>
#include <string>

#include "container-hooks/container_config.hpp"
#include "container-hooks/node_mount.hpp"
#include "container-hooks/prune_decisions.hpp"

namespace heddle {

struct HookSettings {
  Stage stage = Stage::create_runtime;
  std::string cache;  ///< folder of decisions
  CacheLimits limits;
  std::string log;  ///< gets each line as well, with the container's id; empty: none
  std::string mount_point = "/dev/heddle";
  std::string mpi = "auto";
  std::string rpath = "bind";       ///< for containers without that annotation
  std::string node = kNodeFolder;   ///< where fs-mount --node serves; empty: never asked
  std::chrono::seconds limit{120};  ///< for all of a start; 0: none
  bool always = false;  ///< as if the container had heddle.mpi=host (CDI cannot annotate)
};

/// The hook: state on stdin, exit status for the runtime. Without an annotation it ends at once and
/// has touched nothing. A failure is one line on stderr and in the log.
int oci_hook(const HookSettings& settings);

}  // namespace heddle
