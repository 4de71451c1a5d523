// SPDX-License-Identifier: MIT
#pragma once

#include <nlohmann/json.hpp>
#include <string>

namespace heddle::bench {

/// What a demo run found, a line for each program and start, as `./dev demo` prints it, from its
/// JSON (docs/formats/report.md). Throws nlohmann::json::exception on another.
std::string demo_table(const nlohmann::json& run);

/// What the table's words mean.
inline constexpr const char* kDemoWords =
    R"(All files of the programs are on heddle-slowfs, whose server is 200 us away (docs/slowfs.md).
first: neither the node nor heddle knows the program. cold: the node has booted since.
bundle: as cold, from a bundle on the server (docs/tutorial). warm: at once after a cold start.
operations: what the server was asked. One start each.
)";

}  // namespace heddle::bench
