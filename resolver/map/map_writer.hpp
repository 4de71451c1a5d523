// SPDX-License-Identifier: MIT
#pragma once

#include <string>

#include "base/result.hpp"
#include "resolver/map/map_content.hpp"

namespace heddle {

/// Writes `content` as one immutable LMDB file with its trailer at `path`: aside, fsynced, renamed.
/// Refuses (EINVAL) content that breaks the rules of map_content.hpp: unsorted or double names, an
/// object index out of range, a name with NUL or empty. On failure the old file, if any, stands.
Result<void> write_map(const MapContent& content, const std::string& path);

}  // namespace heddle
