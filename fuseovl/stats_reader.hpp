// SPDX-License-Identifier: MIT
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "base/result.hpp"

namespace heddle {

/// The statistics of the mount at `directory`, in their order. A failure begins with `directory`
/// and `what`, which is what cannot be done.
Result<nlohmann::ordered_json> read_stats(const std::string& directory, std::string_view what);

}  // namespace heddle
