// SPDX-License-Identifier: MIT
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

namespace heddle {

struct CacheLimits {
  std::uint64_t bytes = 256U << 20;  ///< of all decisions and maps; one is about 0.1 MB
  std::chrono::hours unused = std::chrono::hours(24 * 90);
};

/// Removes from a decisions' folder what has not been used for long, and beyond `limits.bytes` what
/// has not been used for longest. Never an entry that a start uses at this moment, nor one whose
/// decision is being made.
void prune_decisions(const std::string& folder, const CacheLimits& limits);

/// Removes the maps of `map`'s entry that no start uses, but for `map` itself. The entry's lock
/// must be held.
void remove_other_maps(const std::string& map);

/// Marks the open file `fd`, of mtime `seen` (seconds), as used now; at most once a day, so that
/// starts do not write.
void mark_used(int fd, std::int64_t seen);

}  // namespace heddle
