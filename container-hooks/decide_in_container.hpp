// SPDX-License-Identifier: MIT
#pragma once

#include <sys/types.h>

#include <string>

#include "container-hooks/container_config.hpp"
#include "container-hooks/decision_cache.hpp"

namespace heddle {

struct DecideOrder {
  Stage stage = Stage::create_runtime;
  pid_t pid = 0;           ///< create_runtime: the container's first process
  ContainerConfig config;  ///< rootfs free of symbolic links
  std::string program;     ///< empty: the container's own first word
  std::string cache;       ///< folder
  std::string mount_point;
  std::string mpi = "auto";
  bool fresh = false;  ///< whatever the cache says
};

/// Decides with the container's mounts in place: a program may lie in a volume, which the rootfs as
/// the host sees it does not show. Done in a process of its own, which enters the container.
Result<Decided> decide_in_container(const DecideOrder& order);

}  // namespace heddle
