// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <string_view>

#include "base/result.hpp"

namespace heddle {

/// Sets no_new_privs: no execve(2) of this process or its descendants gains rights. `who` begins
/// the error's message, here and below.
Result<void> give_up_new_privileges(std::string_view who);

/// Whether CAP_... is in this thread's effective set.
bool has_capability(int capability);

/// Drops all capabilities but those of the mask `keep` (1 << CAP_...) from this thread's sets, and
/// all from its bounding set. Root's process becomes not dumpable, so that no other process can
/// inspect it in /proc.
Result<void> drop_capabilities(std::string_view who, std::uint64_t keep = 0);

}  // namespace heddle
