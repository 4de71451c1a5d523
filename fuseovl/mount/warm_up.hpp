// SPDX-License-Identifier: MIT
#pragma once

// What is asked of a mount so that starts need not ask: warm_up() brings names and attributes into
// the kernel's caches and returns, the prefetch reads content ahead in the background.

#include <dirent.h>
#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "base/result.hpp"

namespace heddle {

/// Without `.` and `..`.
struct DirectoryEntry {
  std::uint64_t ino = 0;
  unsigned char type = DT_UNKNOWN;  ///< DT_REG, DT_DIR, ...
};

/// Calls `visit` for every name below the directory `root` is open on (O_PATH will do), directories
/// before what is in them, with the path from there. The kernel is given a large buffer: it asks
/// FUSE for as much as the caller's holds (fs/fuse/readdir.c since Linux 6.14; a page at a time
/// before). `enter` is asked before a directory below the root is read, when all that lies beside
/// it was visited; without one all are.
Result<void> walk_tree(int root,
                       const std::function<void(const std::string&, const DirectoryEntry&)>& visit,
                       const std::function<bool(const std::string&)>& enter = nullptr);

/// Names that are not there: their lookups tell the daemon how far the prefetch is.
inline constexpr const char* kPrefetchBegins = ".heddle/prefetch-begins";
inline constexpr const char* kPrefetchDone = ".heddle/prefetch-done";

inline constexpr std::uint64_t kDefaultPrefetch = 256U << 20;

/// Asks a heddle mount once for what starts need and the kernel can keep: the names and attributes
/// of every view, those ld.so probes for that are not there (glibc-hwcaps), and each operation the
/// daemon does not have. A later start then sends no request. The rest is left to the prefetch.
/// Must not be called by the daemon itself: killed while it waits for its own answer, it could not
/// end.
Result<void> warm_up(const std::string& mount_point);

/// Starts a process, no child of ours (who has one thread), that reads ahead every file of the
/// mount, smallest first, up to `budget` bytes and a quarter of the node's available memory. It
/// does not prevent unmounting, since it works on a detached clone of the mount, and gives up when
/// the mount leaves the tree, when `while_alive` ends, or after half a minute. Fails with EPERM
/// where mounts may not be cloned (a plain user): the mount is then warmed by use.
///
/// It reads through the mount instead of FUSE_NOTIFY_STORE by the daemon, which is a little faster:
/// a store waits, uninterruptibly, for pages that a READ has locked, and holds the device. A daemon
/// killed in that moment could never end, and every reader would hang (measured: 6 of 60 kills with
/// a thread, 16 of 60 with a process of its own). Here every wait ends with a kill, and the device
/// is the daemon's alone.
Result<void> start_prefetch(const std::string& mount_point, std::uint64_t budget = kDefaultPrefetch,
                            std::optional<pid_t> while_alive = std::nullopt);

}  // namespace heddle
