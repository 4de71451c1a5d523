// SPDX-License-Identifier: MIT
#pragma once

#include <string>
#include <string_view>

namespace heddle::registry {

/// "sha256:<64 hex digits>" of `data`.
std::string sha256_digest(std::string_view data);

}  // namespace heddle::registry
