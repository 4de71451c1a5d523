// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <string_view>

#include "base/result.hpp"

namespace heddle {

/// No program that this process starts can give it more rights than it has; nor can it, for ever.
/// `who` begins the error's message, here and below.
Result<void> give_up_new_privileges(std::string_view who);

/// Whether CAP_... is in this thread's effective set.
bool has_capability(int capability);

/// Takes every capability but those of the mask `keep` (1 << CAP_...) out of this thread's sets,
/// and all out of its bounding set. One that it has not is no failure. Root's process is not
/// dumpable from here on: nobody else can look into it by /proc.
Result<void> drop_capabilities(std::string_view who, std::uint64_t keep = 0);

}  // namespace heddle
