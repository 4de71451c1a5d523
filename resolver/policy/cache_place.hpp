// SPDX-License-Identifier: MIT
#pragma once

#include <optional>
#include <string>

#include "resolver/policy/container_side.hpp"
#include "resolver/policy/glibc_choice.hpp"
#include "resolver/policy/swapped_world.hpp"

namespace heddle {

// What the mount serves besides the host's files (docs/formats/map.md).
inline constexpr const char* kOwnFolder = ".heddle/";

/// Where the generated ld.so.cache goes: over the one that ld.so reads. An image without one has no
/// file to bind over, and none can be made there: ld.so is then served as a copy that reads the
/// mount's.
struct CachePlace {
  std::string path;                          ///< that ld.so reads
  std::string target;                        ///< free of links; empty: the image has none
  std::optional<SwappedWorld::Made> loader;  ///< that copy, for an image without a cache
  std::string why;                           ///< of that copy
  std::string conflict;                      ///< neither can be done: why
};
CachePlace find_cache_place(ContainerSide& inside, OsWorld& host, const GlibcFamily& family,
                            const GlibcChoice& glibc, const std::string& mount_point);

}  // namespace heddle
