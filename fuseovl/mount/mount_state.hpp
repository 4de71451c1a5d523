// SPDX-License-Identifier: MIT
#pragma once

#include <string>

namespace heddle {

/// Whether nobody answers for the mount any more. A daemon that is stopped, or says nothing for
/// half a second, counts as alive: it may go on.
bool is_dead(const std::string& mount_point);

}  // namespace heddle
