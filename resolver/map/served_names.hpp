// SPDX-License-Identifier: MIT
#pragma once

#include <string_view>

namespace heddle {

/// The directory, at a mount's root, of what is the mount's own: its index, statistics and map.
inline constexpr std::string_view kOwnDirectory = ".heddle";
inline constexpr std::string_view kOwnPrefix = ".heddle/";

/// The directory, at a mount's root, through which programs are sent to the names of one map:
/// `.m/ID/NAME`, ID being map_directory(). After an exchange of maps (fs-mount --reload) the names
/// of the maps before lead to the original files there, so that a start never mixes two maps.
inline constexpr std::string_view kMapsDirectory = ".m";

/// Of a map's id in hexadecimal: as much as tells maps of one mount point apart, and no more, since
/// ld.so compares whole paths.
inline std::string_view map_directory(std::string_view map_id) { return map_id.substr(0, 12); }

/// Another name, at the root, of the generated ld.so.cache: no longer than /etc/ld.so.cache where
/// the mount point is short (resolver/policy/placement.cpp).
inline constexpr std::string_view kShortCache = ".ldc";

}  // namespace heddle
