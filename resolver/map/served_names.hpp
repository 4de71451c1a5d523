// SPDX-License-Identifier: MIT
#pragma once

#include <string_view>

namespace heddle {

/// The folder, at a mount's root, of what is the mount's own: its index, statistics and map.
inline constexpr std::string_view kOwnFolder = ".heddle";

/// Another name, at the root, of the generated ld.so.cache: no longer than /etc/ld.so.cache where
/// the mount point is short (resolver/policy/placement.cpp).
inline constexpr std::string_view kShortCache = ".ldc";

}  // namespace heddle
