// SPDX-License-Identifier: MIT
#pragma once

// fs-mount's modes for an existing mount.

#include <nlohmann/json.hpp>

#include "fuseovl/service/mount_daemon.hpp"

namespace heddle {

/// Replaces the mount at settings.mount_point by one of the map settings.load.map_path, or where
/// that is empty, of the same map.
Result<void> reload_mount(MountSettings settings);
Result<void> unmount(const std::string& directory, bool lazy);
/// Prints the statistics.
Result<void> show_stats(const std::string& directory, bool json);
/// Compares the SHA-256 of the files that the mount at `path` serves, or that the map there names,
/// with the map: false, and a line on stdout for each file that differs. `limit`: for an answer of
/// a file system.
Result<bool> verify(const std::string& path, std::chrono::milliseconds limit);

/// The statistics of the mount at `directory`; ETIMEDOUT: its daemon does not answer. `what` is the
/// operation that fails then, for the message.
Result<nlohmann::ordered_json> read_stats(const std::string& directory, std::string_view what);

}  // namespace heddle
