// SPDX-License-Identifier: MIT
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/fd.hpp"

namespace heddle {

/// Media types of heddle's artifacts in registries.
inline constexpr const char* kArtifactMediaType = "application/vnd.heddle.compat.v1+json";
inline constexpr const char* kMapMediaType = "application/vnd.heddle.map.v1";

/// Runs libexec/heddle/oci-client with `arguments`, `input` as stdin and the descriptor `out` as
/// stdout. It reports failures itself, as `program`. Result: its exit status.
Result<int> run_oci_client(const char* program, const std::vector<std::string>& arguments,
                           std::string_view input, int out);

}  // namespace heddle
