// SPDX-License-Identifier: MIT
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <string>

#include "base/result.hpp"

namespace heddle {

inline constexpr std::uint64_t kDefaultPrefetch = 256U << 20;

struct PrefetchOptions {
  /// Bytes of file content to bring into the kernel's page cache, smallest files first; it also
  /// bows to a quarter of the node's available memory. 0: none.
  std::uint64_t budget = kDefaultPrefetch;
  /// The prefetch gives up when this process ends; nullopt: it does not care.
  std::optional<pid_t> while_alive;
};

/// Starts a process, no child of ours, that reads ahead every file of the mount, and returns. It
/// keeps nobody from unmounting, since it works on a detached clone of the mount, and gives up when
/// the mount leaves the tree or after half a minute. Fails with EPERM where mounts may not be
/// cloned (a plain user): the mount is then warmed by use.
///
/// It reads through the mount instead of FUSE_NOTIFY_STORE by the daemon, which is a little faster:
/// a store waits, uninterruptibly, for pages that a READ has locked, and holds the device. A daemon
/// killed in that moment could never end, and every reader would hang (measured: 6 of 60 kills with
/// a thread, 16 of 60 with a process of its own). Here every wait ends with a kill, and the device
/// is the daemon's alone.
Result<void> start_prefetch(const std::string& mount_point, const PrefetchOptions& options);

}  // namespace heddle
