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
  privately,   ///< in a mount namespace of the service's own; clients get copies (root)
  fusermount,  ///< in the namespace as it is, by fusermount3 (anybody)
};

struct MountSettings {
  LoadOptions load;
  std::string map_id;       ///< what the map's id must be; empty: anything
  std::string mount_point;  ///< as the caller wrote it; empty with fuse_fd
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
  bool exchange = false;  ///< take the place of the mount that stands at mount_point
  std::string node;       ///< directory of the node's mounts
};

/// Makes this process a daemon's: a session of its own, so that the terminal's signals stay away,
/// `/` as directory, no signal blocked but SIGTERM, SIGINT and SIGHUP, /dev/null as stdin and
/// stdout, and `log_path` (appended to) or /dev/null as stderr. Fails only when the log cannot be
/// opened.
Result<void> leave_terminal(const std::string& log_path);

/// Mounts and serves in the background; returns when the mount answers and is warm. With
/// settings.foreground it serves here, until the mount has gone. Failure: nothing is left;
/// Cause::unfit when the map cannot be served here however it is mounted, Cause::silent when a file
/// system does not answer. The signals that end a daemon are blocked from here on.
Result<void> start_daemon(const MountSettings& settings);
/// Serves settings.fuse_fd, which somebody has mounted, until the mount has gone. Failures go to
/// settings.ready_fd too.
Result<void> serve_device(const MountSettings& settings);

}  // namespace heddle
