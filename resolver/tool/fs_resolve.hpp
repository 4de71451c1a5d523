// SPDX-License-Identifier: MIT
#pragma once

namespace heddle {

/// The program fs-resolve: build, show, lookup, why, tree and verify. Result: ExitCode.
int fs_resolve(int argc, const char* const* argv);

}  // namespace heddle
