// SPDX-License-Identifier: MIT
#pragma once

#include <chrono>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "base/result.hpp"

namespace heddle::hook {

// A runtime waits for its hook, and runc until nobody holds the hook's stderr. A process that waits
// in the kernel for a file server that has gone cannot be killed. So the process that the runtime
// waits for touches no file: it watches another that does the work, passes its messages on at the
// end, and kills it with all it has started when its time is over. What the work was doing is noted
// in memory that the processes share; without such memory (no run_watched() above) the notes go
// nowhere.

/// How watched work ended.
struct WatchedEnd {
  std::optional<int> status;  ///< its exit status, 128+n for signal n; none: out of time
  std::string step;           ///< its last note_step(): "reading /usr/lib/libmpi.so.12"
  bool placed = false;        ///< it left something in the container
  bool done() const { return status && *status < 128; }
};

/// Runs `work` in a process of its own and, when it is not done within `limit` (0: none), kills it
/// with all that it started.
Result<WatchedEnd> run_watched(std::chrono::milliseconds limit, const std::function<int()>& work);

/// Before each step that may wait for others: a file that lies on a server, a program.
void note_step(std::string_view doing, std::string_view what);
/// Whether this process has something in the container, which it takes away when no process leads
/// it any more.
void note_placed(bool placed);
/// Whether something is left in the container.
bool is_placed();

}  // namespace heddle::hook
