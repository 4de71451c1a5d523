// SPDX-License-Identifier: MIT
#pragma once

namespace heddle {

/// The program fs-gen. Result: APP's exit status, 126 or 127 as a shell gives them, or ExitCode.
int fs_gen(int argc, const char* const* argv);

}  // namespace heddle
