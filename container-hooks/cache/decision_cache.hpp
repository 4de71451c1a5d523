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

/// Which image, for which program.
struct ImageQuestion {
  std::string rootfs;   ///< on the host
  std::string program;  ///< absolute, in the image
  std::string mount_point;
  std::string mpi = "auto";  ///< as fs-resolve takes it
  std::string library_path;  ///< LD_LIBRARY_PATH that the container runs with
  int asker = -1;            ///< a pipe: when its read end is closed, fs-resolve is stopped
  std::string stale_map;     ///< map_id of a decision that holds no longer; empty: any holds
};

struct Decided {
  Decision decision;
  std::string map;          ///< its path; empty without a swap
  bool from_cache = false;  ///< host files may have changed since: fs-mount checks that
  Fd in_use;                ///< while open the map is not pruned
};

/// Decisions kept in a directory, each with its map: one for each content of an image, shared by
/// its containers, whichever rootfs they have. (Of images that have their program and ld.so.cache
/// in common and differ elsewhere, the last one that was decided on is kept.) The directory is the
/// caller's alone: what lies in it is mounted into containers. An entry is KEY.ID.map (ID is its
/// content's hash: a path never comes to lead to another map), KEY.json (the decision, its map's ID
/// and the hash of the image's files that it depends on; written last, it makes the entry valid)
/// and KEY.lock, held by the process that decides or prunes. Readers take no lock: they hold the
/// map by flock(2), and it is not removed while held. COPY.seen holds what ImageContents remembers
/// of one copy of an image.
class DecisionCache {
 public:
  /// Makes the directory; refuses one that others may write to. What is added to it prunes it.
  static Result<DecisionCache> open(const std::string& directory, const CacheLimits& limits = {});

  /// From the cache, or by fs-resolve: once for all that ask at the same time. Fails when
  /// fs-resolve fails. An incompatible pair is no failure here, and is decided anew for later
  /// askers: the administrator may have changed the image or the host.
  Result<Decided> decide(const ImageQuestion& question) const;

 private:
  DecisionCache(std::string directory, const CacheLimits& limits)
      : directory_(std::move(directory)), limits_(limits) {}
  std::string directory_;
  CacheLimits limits_;
};

/// Removes what has not been used for long, and beyond `limits.bytes` the least recently used.
/// Never a map that is held, nor an entry that is being decided on.
void prune_decisions(const std::string& directory, const CacheLimits& limits);

}  // namespace heddle::hook
