// SPDX-License-Identifier: MIT
#pragma once

#include <functional>
#include <string>

#include "base/launch/app_end.hpp"
#include "fsgen/gen_options.hpp"

namespace heddle {

/// fs-gen --learn: calls `run` once, with a log for what its processes load, and writes the map
/// with all of that to options.out. Returns run's end; a map that cannot be written is said, and is
/// exit_failure where APP itself had none. Throws heddle::Error when it cannot even begin.
AppEnd learn(const GenOptions& options, const std::string& app_path,
             const std::function<AppEnd(const GenOptions&)>& run);

}  // namespace heddle
