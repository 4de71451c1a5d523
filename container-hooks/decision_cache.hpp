// SPDX-License-Identifier: MIT
#pragma once

#include <string>

#include "base/fd.hpp"
#include "container-hooks/decision.hpp"
#include "container-hooks/prune_decisions.hpp"

namespace heddle {

/// Which image, for which program.
struct ImageQuestion {
  std::string rootfs;   ///< on the host
  std::string program;  ///< absolute, in the image
  std::string mount_point;
  std::string mpi = "auto";  ///< as fs-resolve takes it
  std::string library_path;  ///< LD_LIBRARY_PATH that the container runs with
  int asker = -1;            ///< the pipe of who asks: when he has gone, fs-resolve is stopped
  std::string stale_map;     ///< map_id of a decision that holds no longer; empty: any holds
};

struct Decided {
  Decision decision;
  std::string map;          ///< empty without a swap
  std::string map_id;       ///< hash of its bytes, in hex digits
  bool from_cache = false;  ///< host files may have changed since: fs-mount says so
  Fd in_use;                ///< while open the map is not pruned
};

/// Decisions kept in a folder, each with its map: one for each content of an image, so that its
/// containers share it, whichever rootfs they have. (Of images that have their program and
/// ld.so.cache in common and differ elsewhere, the one decided on last is kept.) The folder is the
/// caller's alone: what lies in it is mounted into containers. An entry is four files: KEY.ID.map
/// (ID is its content's hash: a path never comes to lead to another map), KEY.json (the decision
/// for people), KEY.decision (the same for us; written last, it makes the entry valid), KEY.lock; a
/// new map removes older ones of its KEY that nobody uses. COPY.seen holds what ImageContents
/// remembers of one copy of an image.
class DecisionCache {
 public:
  /// Makes the folder; refuses one that others may write to. What is added to it prunes it.
  static Result<DecisionCache> open(const std::string& folder, const CacheLimits& limits = {});

  /// From the cache, or by fs-resolve: once for all that ask at the same time. Fails when
  /// fs-resolve fails; an incompatible pair is no failure here, and not taken from the cache by who
  /// asks later.
  Result<Decided> decide(const ImageQuestion& question) const;

 private:
  DecisionCache(std::string folder, const CacheLimits& limits)
      : folder_(std::move(folder)), limits_(limits) {}
  std::string folder_;
  CacheLimits limits_;
};

}  // namespace heddle
