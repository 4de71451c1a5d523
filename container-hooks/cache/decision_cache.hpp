// SPDX-License-Identifier: MIT
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

#include "base/fd.hpp"
#include "container-hooks/cache/decision.hpp"

namespace heddle::hook {

struct CacheLimits {
  std::uint64_t bytes = 256U << 20;  ///< of all decisions and maps; one has about 0.1 MB
  std::chrono::hours unused = std::chrono::hours(24 * 90);
};

/// A program of an image.
struct ImageQuestion {
  std::string rootfs;   ///< on the host
  std::string program;  ///< absolute, in the image
  std::string mount_point;
  std::string mpi = "auto";  ///< as fs-resolve takes it
  std::string path;          ///< the container's PATH
  std::string library_path;  ///< the container's LD_LIBRARY_PATH
  std::string preload;       ///< the container's LD_PRELOAD
  int reader = -1;           ///< a pipe; fs-resolve is stopped when its read end is closed
  std::string stale_map;     ///< map_id of an outdated decision, which is not reused; or empty
};

struct Decided {
  Decision decision;
  std::string map;           ///< its path; empty without a swap
  bool from_cache = false;   ///< the host's files may have changed since: fs-mount checks them
  Fd in_use;                 ///< while open, the map is not pruned
  std::string scratch = {};  ///< the map's temporary directory, for the caller to remove; or empty
};

/// Decisions in a directory, each with its map: one for each content of an image, shared by its
/// containers whatever their rootfs. (Of images that have program and ld.so.cache in common and
/// differ elsewhere, only the last decision is stored.) Only the caller may write to the directory:
/// its files are mounted into containers. The files of an entry:
/// - KEY.ID.map; ID is the hash of its content, so that a path never leads to another map. Readers
///   hold it by flock(2), which keeps it from being removed.
/// - KEY.json: the decision, the map's ID and the hash of the image's files that it depends on.
///   Written last, it makes the entry valid.
/// - KEY.lock: locked by the process that decides or prunes.
/// COPY.seen has the file hashes of one copy of an image (ImageContents).
class DecisionCache {
 public:
  /// Makes the directory; refuses one that others may write to. A new entry prunes the directory.
  static Result<DecisionCache> open(const std::string& directory, const CacheLimits& limits = {});

  /// From the cache, or by one fs-resolve for all concurrent callers. Fails when fs-resolve fails.
  /// An incompatible pair is a result, and decided anew for later callers: the administrator may
  /// have changed the image or the host.
  Result<Decided> decide(const ImageQuestion& question) const;

 private:
  DecisionCache(std::string directory, const CacheLimits& limits)
      : directory_(std::move(directory)), limits_(limits) {}
  std::string directory_;
  CacheLimits limits_;
};

/// As DecisionCache::decide(), and when `directory` is full, read-only or another user's by
/// fs-resolve in a temporary directory, with a warning in the decision.
Result<Decided> decide_image(const std::string& directory, const CacheLimits& limits,
                             const ImageQuestion& question);

/// Removes entries unused for `limits.unused`, and beyond `limits.bytes` the least recently used;
/// never a locked map or entry.
void prune_decisions(const std::string& directory, const CacheLimits& limits);

}  // namespace heddle::hook
