// SPDX-License-Identifier: MIT
#pragma once

namespace heddle {

/// The program compat-check. Result: its exit status.
int compat_check(int argc, const char* const* argv);

}  // namespace heddle
