// SPDX-License-Identifier: MIT
#pragma once

#include <string>

#include "container-hooks/inside_container.hpp"

namespace heddle {

struct HookSettings {
  Stage stage = Stage::create_runtime;
  std::string cache;  ///< folder of decisions
  std::string log;    ///< gets each line as well, with the container's id; empty: none
  std::string mount_point = "/dev/heddle";
  std::string mpi = "auto";
  bool always = false;  ///< as if the container had heddle.mpi=host (CDI cannot annotate)
};

/// The hook: state on stdin, exit status for the runtime. Without an annotation it ends at once and
/// has touched nothing. A failure is one line on stderr and in the log.
int oci_hook(const HookSettings& settings);

}  // namespace heddle
