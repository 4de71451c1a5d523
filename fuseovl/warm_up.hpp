// SPDX-License-Identifier: MIT
#pragma once

#include <string>

#include "base/result.hpp"

namespace heddle {

/// What the daemon writes to a --ready-fd when it answers; anything else there is an error's text.
inline constexpr char kReadyByte = '+';
/// Below `.heddle`: its lookup, answered "no such file", says that the mount is warm and lets the
/// daemon begin to hand file contents to the kernel.
inline constexpr const char* kWarmSignal = "warm";

/// Waits for the daemon at the other end of `ready_fd` to answer. Its error's text, or that it
/// ended, is the failure. Behind the ready byte the daemon writes its last counters, the JSON of
/// `.heddle/stats`, when the mount has gone, then closes.
Result<void> await_ready(int ready_fd);

/// Asks a heddle mount once for everything that can be kept: every name and attribute, the names
/// ld.so probes for that are not there (glibc-hwcaps), and each operation the daemon does not have.
/// A later start then sends no request. Must not be called by the daemon itself: killed while it
/// waits for its own answer, it could not end.
Result<void> warm_up(const std::string& mount_point);

}  // namespace heddle
