// SPDX-License-Identifier: MIT
#pragma once

#include <string>

#include "base/result.hpp"
#include "resolver/map/map_content.hpp"
#include "resolver/policy/decide.hpp"
#include "resolver/search/world.hpp"

namespace heddle {

/// The map of what `decision` takes from the host: one view with its names, nothing to guide.
/// `container_json` and what the decision made become generated files. Fails when one of the host's
/// files cannot be read.
Result<MapContent> build_container_map(World& host, const policy::Decision& decision,
                                       const std::string& container_json);

}  // namespace heddle
