// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <string_view>

namespace heddle {

/// The directory in a mount's root that contains its index, statistics and map.
inline constexpr std::string_view kOwnDirectory = ".heddle";
inline constexpr std::string_view kOwnPrefix = ".heddle/";

/// The directory in a mount's root through which programs are guided to the names of one map:
/// `.m/ID/NAME`, ID being map_directory(): a directory of its own, not a link to the root, since
/// following a link costs each open 0.8 us. After an exchange of maps (fs-mount --reload) the old
/// map's names lead to the original files, so that a start never mixes two maps.
inline constexpr std::string_view kMapsDirectory = ".m";
/// The inode number of the served map's directory there.
inline constexpr std::uint64_t kMapInode = 3;

/// A map's hexadecimal id, cut to what tells the maps of one mount point apart: ld.so compares
/// whole paths.
inline std::string_view map_directory(std::string_view map_id) { return map_id.substr(0, 12); }

/// The directory in a mount's root with the map's trees: `.t/0` is MapContent::trees[0], and so on.
/// fs-gen mounts each over its own path.
inline constexpr std::string_view kTreesDirectory = ".t";

/// A second, short name of the generated ld.so.cache in the root: with a short mount point its path
/// is no longer than /etc/ld.so.cache (resolver/policy/placement.cpp).
inline constexpr std::string_view kShortCache = ".ldc";

}  // namespace heddle
