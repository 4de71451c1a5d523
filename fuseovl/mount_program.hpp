// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "fuseovl/keep/kept_mount.hpp"
#include "fuseovl/overlay/load.hpp"
#include "fuseovl/session/session.hpp"
#include "fuseovl/supervise/serve.hpp"

namespace heddle {

struct MountSettings {
  LoadOptions load;
  std::string mount_point;  ///< as the caller wrote it; empty with fuse_fd
  bool foreground = false;
  std::uint64_t prefetch = 256U << 20;
  /// At most; libfuse starts one more when all are busy. More than cores: one may wait for a slow
  /// origin.
  unsigned threads = 4;
  std::string log_path;
  int fuse_fd = -1;
  int ready_fd = -1;
  std::string cleanup;
  bool leave_tree = false;
  std::optional<KeepKind> keep;
  int listen_fd = -1;
  bool exchange = false;  ///< take the place of the mount that stands at mount_point
  std::string node;       ///< folder of the node's mounts
};

SessionOptions session_options(const MountSettings& settings);

/// serve(), and the mount detached when that fails.
int serve_program(Overlay& overlay, Fd device, ServeOptions options);

// Each talks to stderr and gives the exit status.

/// Mounts and serves: in a daemon, returning when the mount answers and is warm, or in the
/// foreground.
int mount_program(const MountSettings& settings);
/// Serves settings.fuse_fd until its mount is gone.
int serve_fd_program(const MountSettings& settings);
/// Mounts for those who connect to settings.listen_fd, and serves until the last of them has gone
/// (fuseovl/keep/keeper.hpp). Says nothing: what goes wrong is told to them.
int keep_program(const MountSettings& settings);
/// Puts a mount of this fs-mount's in the place of the one at settings.mount_point, of the map
/// settings.load.map_path, or of the same map when that is empty.
int reload_program(const MountSettings& settings);
/// Mounts in settings.node what containers ask for (fuseovl/node_service.hpp), until a signal
/// comes.
int node_program(const MountSettings& settings);
int unmount_program(const std::string& directory, bool lazy);
int stats_program(const std::string& directory, bool json);
/// Reads all that the mount at `path` serves, or that the map there names, and compares SHA-256:
/// exit_different, and a line to stdout for each file that is not the map's. What is at `path` is
/// found within `limit`.
int verify_program(const std::string& path, std::chrono::milliseconds limit);

}  // namespace heddle
