// SPDX-License-Identifier: MIT
#pragma once

#include <chrono>
#include <string>

#include "container-hooks/container_config.hpp"
#include "base/mount_service.hpp"
#include "container-hooks/prune_decisions.hpp"
#include "container-hooks/swap_request.hpp"

namespace heddle {

struct HookSettings {
  Stage stage = Stage::create_runtime;
  std::string cache;  ///< folder of decisions
  CacheLimits limits;
  std::string log;  ///< gets each line as well, with the container's id; empty: none
  std::string mount_point = "/dev/heddle";
  std::string mpi = "auto";
  /// What whoever installed the hook asks for. Arguments of a hook are the administrator's or the
  /// user's own (CDI, podman --hooks-dir, config.json): no image has a part in them.
  SwapRequest request;
  /// Directories; annotations count in bundles below one of them. podman copies an image's own
  /// annotations into its container, so anywhere else they may be the image's word.
  std::vector<std::string> allow_annotations;
  std::string node = kNodeDirectory;   ///< where fs-mount --node serves; empty: never asked
  std::chrono::seconds limit{120};  ///< for all of a start; 0: none
};

/// The hook: state on stdin, exit status for the runtime. Where nobody who counts has asked it ends
/// at once and has touched nothing but its log. A failure is one line on stderr and in the log.
int oci_hook(const HookSettings& settings);

}  // namespace heddle
