// SPDX-License-Identifier: MIT
#pragma once

// What fs-mount does with a mount that stands.

#include <nlohmann/json.hpp>

#include "fuseovl/service/mount_daemon.hpp"

namespace heddle {

/// Puts a mount of this fs-mount's in the place of the one at settings.mount_point, of the map
/// settings.load.map_path, or of the same map when that is empty.
Result<void> reload_mount(MountSettings settings);
Result<void> unmount(const std::string& directory, bool lazy);
/// Prints them.
Result<void> show_stats(const std::string& directory, bool json);
/// Reads all that the mount at `path` serves, or that the map there names, and compares SHA-256:
/// false, and a line to stdout for each file that is not the map's. What is at `path` is found
/// within `limit`.
Result<bool> verify(const std::string& path, std::chrono::milliseconds limit);

/// The statistics of the mount at `directory`, in their order; ETIMEDOUT: its daemon does not
/// answer. A failure begins with `directory` and `what`, which is what cannot be done.
Result<nlohmann::ordered_json> read_stats(const std::string& directory, std::string_view what);

}  // namespace heddle
