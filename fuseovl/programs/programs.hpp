// SPDX-License-Identifier: MIT
#pragma once

// What fs-mount does with a mount that stands. Each talks to stderr and gives the exit status.

#include <nlohmann/json.hpp>

#include "fuseovl/service/mount_daemon.hpp"

namespace heddle {

/// Puts a mount of this fs-mount's in the place of the one at settings.mount_point, of the map
/// settings.load.map_path, or of the same map when that is empty.
int reload_program(MountSettings settings);
int unmount_program(const std::string& directory, bool lazy);
int stats_program(const std::string& directory, bool json);
/// Reads all that the mount at `path` serves, or that the map there names, and compares SHA-256:
/// exit_no, and a line to stdout for each file that is not the map's. What is at `path` is found
/// within `limit`.
int verify_program(const std::string& path, std::chrono::milliseconds limit);

/// The statistics of the mount at `directory`, in their order; ETIMEDOUT: its daemon does not
/// answer. A failure begins with `directory` and `what`, which is what cannot be done.
Result<nlohmann::ordered_json> read_stats(const std::string& directory, std::string_view what);

}  // namespace heddle
