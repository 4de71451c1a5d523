// SPDX-License-Identifier: MIT
#pragma once

#include <chrono>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "base/result.hpp"

namespace heddle::hook {

// A runtime waits for its hook, and runc also until the hook's stderr is closed. A process that
// waits in the kernel for a dead file server cannot be killed. So the process that the runtime
// waits for opens no file: it is a watchdog for the worker, passes on its messages at the end, and
// kills it with its descendants on timeout. The worker notes its steps in shared memory; without
// run_watched() the notes have no effect.

/// How watched work ended.
struct WatchedEnd {
  std::optional<int> status;  ///< its exit status, 128+n for signal n; none: timeout
  std::string step;           ///< its last note_step(): "reading /usr/lib/libmpi.so.12"
  bool placed = false;        ///< mounts of it are left in the container
  bool done() const { return status && *status < 128; }
};

/// Runs `work` in a process of its own, and kills it with its descendants after `limit` (0: none).
Result<WatchedEnd> run_watched(std::chrono::milliseconds limit, const std::function<int()>& work);

/// Call before each step that may block: a file on a server, another program.
void note_step(std::string_view doing, std::string_view what);
/// Whether this process has mounts in the container. It undoes them when its socket is closed.
void note_placed(bool placed);
/// Whether mounts are left in the container.
bool is_placed();

}  // namespace heddle::hook
