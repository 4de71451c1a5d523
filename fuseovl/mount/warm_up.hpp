// SPDX-License-Identifier: MIT
#pragma once

// Fills the kernel's caches, so that starts send no requests: warm_up() with names and attributes,
// the prefetch with content, in the background.

#include <dirent.h>
#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <unordered_set>

#include "base/result.hpp"

namespace heddle {

/// Without `.` and `..`.
struct DirectoryEntry {
  std::uint64_t ino = 0;
  unsigned char type = DT_UNKNOWN;  ///< DT_REG, DT_DIR, ...
};

/// Calls `visit` with each path below the directory `root` (O_PATH will do), a directory before its
/// contents. A directory (its inode is `ino`) is read if `enter` is none or returns true, after its
/// siblings were visited. The buffer is large: since Linux 6.14 FUSE asks for as much
/// (fs/fuse/readdir.c).
Result<void> walk_tree(
    int root, const std::function<void(const std::string&, const DirectoryEntry&)>& visit,
    const std::function<bool(const std::string& path, std::uint64_t ino)>& enter = nullptr);

/// Calls `call` with each name of the directory `directory`.
void for_each_name(int directory, const std::function<void(const std::string&)>& call);

/// Names that do not exist: their lookups tell the daemon how far the prefetch is.
inline constexpr const char* kPrefetchBegins = ".heddle/prefetch-begins";
inline constexpr const char* kPrefetchDone = ".heddle/prefetch-done";

inline constexpr std::uint64_t kDefaultPrefetch = 256U << 20;

/// Has the kernel cache what starts need: the names and attributes of every view, the missing names
/// that ld.so probes (glibc-hwcaps), and that the daemon lacks some operations. A later start then
/// sends no request. The daemon itself must not call it: killed while it waits for its own answer,
/// it could not end.
Result<void> warm_up(const std::string& mount_point);

/// The files of a mounted bundle, by inode numbers.
struct BundlePlaces {
  std::map<std::uint64_t, std::uint64_t> files;   ///< their places in it
  std::unordered_set<std::uint64_t> directories;  ///< of trees, that lead to them
};

/// How many names of trees the prefetch has the kernel cache: 20 MB of its memory, and half a
/// second of one core.
inline constexpr std::size_t kPrefetchedTreeNames = 20'000;

/// Starts a process, not a child of this single-threaded one, that reads ahead every library of the
/// mount, smallest first, up to `budget` bytes and a quarter of the node's available memory; those
/// in `bundle` (nullopt: there is none) in the order of their places. Then the names of trees,
/// which cost the origin nothing, and of their files those in the bundle. It works on a detached
/// clone of the mount, so it does not prevent unmounting, and ends when the mount leaves the tree,
/// or after half a minute. EPERM where mounts may not be cloned (a plain user), ENOSYS before
/// Linux 5.2.
///
/// FUSE_NOTIFY_STORE by the daemon would be a little faster, but waits uninterruptibly for pages
/// that a READ has locked: a daemon killed in that moment never ends, and its readers hang (6 to 16
/// of 60 kills).
Result<void> start_prefetch(const std::string& mount_point, std::uint64_t budget = kDefaultPrefetch,
                            const std::optional<BundlePlaces>& bundle = {});

}  // namespace heddle
