// SPDX-License-Identifier: MIT
#pragma once

#include <chrono>
#include <string>

#include "base/result.hpp"

namespace heddle {

/// Whether the map open at `map` can be served on this node: its bytes' hash is `id`, and every
/// file of the host is still as it says. ESTALE: files differ from it; ETIMEDOUT: a file system has
/// not answered for `limit`.
Result<void> check_for_node(const std::string& id, int map, std::chrono::milliseconds limit);

}  // namespace heddle
