// SPDX-License-Identifier: MIT
#pragma once

#include <string>

#include "base/result.hpp"

namespace heddle {

/// `name` as execvp(3) finds it. Failure: code() ENOENT or EACCES.
Result<std::string> find_command(const std::string& name);

}  // namespace heddle
