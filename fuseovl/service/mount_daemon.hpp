// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "fuseovl/overlay/load.hpp"
#include "fuseovl/session/session.hpp"
#include "fuseovl/supervise/serve.hpp"

namespace heddle {

enum class KeepKind : std::uint8_t {
  privately,   ///< in a mount namespace of its own, a user's below a user namespace; clients get
               ///< copies
  fusermount,  ///< in the current namespace, by fusermount3 (any user)
};

struct MountSettings {
  LoadOptions load;
  std::string map_id;       ///< expected; empty: any
  std::string mount_point;  ///< as on the command line; empty with fuse_fd
  bool foreground = false;
  std::uint64_t prefetch = 256U << 20;
  unsigned threads = SessionOptions().threads;
  std::string log_path;
  int fuse_fd = -1;
  int ready_fd = -1;
  std::string cleanup;
  bool leave_tree = false;
  std::optional<KeepKind> keep;
  int listen_fd = -1;
  int service_fd = -1;    ///< ServeOptions::service
  bool exchange = false;  ///< replace the mount at mount_point
  std::string node;       ///< directory of the node's mounts
};

/// Makes this process a daemon: a session of its own, `/` as directory, SIGTERM, SIGINT and SIGHUP
/// blocked, /dev/null as stdin and stdout, and `log_path` (appended to) or /dev/null as stderr.
Result<void> leave_terminal(const std::string& log_path);

/// Mounts and serves in the background; returns when the mount answers and is warm. With
/// settings.foreground it serves here, until the mount ends. Failure: nothing is left; Cause::unfit
/// when no mount can serve the map here, Cause::silent when a file system does not answer. The
/// signals that end a daemon are blocked from here on.
Result<void> start_daemon(const MountSettings& settings);
/// Serves the mounted device settings.fuse_fd until the mount ends. Failures go to
/// settings.ready_fd too.
Result<void> serve_device(const MountSettings& settings);

}  // namespace heddle
