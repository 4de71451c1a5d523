// SPDX-License-Identifier: MIT
#pragma once

#include <nlohmann/json.hpp>
#include <string>

namespace heddle::bench {

/// What a demo run saved, a line for each program, as `./dev demo` prints it, from its JSON:
/// `{"rows": [{"program", "failed_plain", "failed_guided", "plain_ns": [...], "guided_ns":
/// [...]}]}`. Throws nlohmann::json::exception on another.
std::string demo_table(const nlohmann::json& run);

}  // namespace heddle::bench
