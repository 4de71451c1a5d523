// SPDX-License-Identifier: MIT
#pragma once

namespace heddle {

/// The program fs-hook: argv in, exit status out (base/exit_code.hpp).
int fs_hook(int argc, char** argv);

}  // namespace heddle
