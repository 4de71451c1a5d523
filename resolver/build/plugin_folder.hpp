// SPDX-License-Identifier: MIT
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "base/result.hpp"

namespace heddle {

/// The files below the plugin folder `folder` as (absolute path, name in the view): "<last part of
/// folder>/<path below it>", so that a library that looks beside itself finds them. Links count as
/// the files they lead to. Sorted; fails when the folder cannot be listed.
Result<std::vector<std::pair<std::string, std::string>>> list_plugin_folder(
    const std::string& folder);

}  // namespace heddle
