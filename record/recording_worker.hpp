// SPDX-License-Identifier: MIT
#pragma once

#include "record/recorder.hpp"

namespace heddle {

/// Exit statuses of a worker.
inline constexpr int kMountGone = 0;
inline constexpr int kNoResend = 4;  ///< this kernel sends nothing again: before Linux 6.9

/// A process like fork(2)'s that has not copies of our descriptors but the very same table: a file
/// that it opens stays open when it dies. The caller must be the only thread. -1 and errno, as
/// fork.
pid_t fork_with_our_descriptors();

/// The worker, in the process just made so: serves the loopback until the mount has gone, then
/// tells what is still open. `follows`: another has died before it.
[[noreturn]] void work(RecordingMemory& memory, const RecorderOptions& options, int device,
                       pid_t supervisor, bool follows);

}  // namespace heddle
