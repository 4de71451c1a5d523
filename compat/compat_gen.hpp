// SPDX-License-Identifier: MIT
#pragma once

namespace heddle {

/// The program compat-gen. Result: its exit status.
int compat_gen(int argc, const char* const* argv);

}  // namespace heddle
