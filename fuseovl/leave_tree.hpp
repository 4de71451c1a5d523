// SPDX-License-Identifier: MIT
#pragma once

#include "base/result.hpp"

namespace heddle {

/// Gives this process, which has a mount namespace of its own, an empty root, and takes all else
/// out of the namespace: as long as it lives it would hold every mount that was there, those of
/// other heddles too. What is open stays open. On failure all is as before.
Result<void> leave_tree();

}  // namespace heddle
