// SPDX-License-Identifier: MIT
#pragma once

#include <sys/types.h>

#include <optional>
#include <string>
#include <vector>

#include "fuseovl/overlay.hpp"

namespace heddle {

struct ServeOptions {
  /// What a signal detaches; nullopt: the mount is in a namespace that is not ours.
  std::optional<std::string> mount_point;
  dev_t mount_device = 0;       ///< st_dev of the mount, to tell it from another at the same place
  std::string cleanup;          ///< folder to remove at the end; empty: none
  Fd ready;                     ///< gets kReadyByte when the daemon answers, or an error's text
  bool report_at_end = false;   ///< `ready` gets the last counters as well
  std::optional<pid_t> helper;  ///< a child to reap when it ends
  SessionOptions session;
};

/// Serves `overlay` on `device` until the file system is gone; blocks. SIGTERM, SIGINT and SIGHUP
/// detach the mount: it leaves the tree at once, and the daemon ends when its last user has gone,
/// so that running programs do not lose their libraries. A second signal ends it at once.
Result<void> serve(Overlay& overlay, Fd device, ServeOptions options);

}  // namespace heddle
