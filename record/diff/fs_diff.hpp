// SPDX-License-Identifier: MIT
#pragma once

namespace heddle {

/// fs-diff, from argv to exit status: 0 the same (or inside), 1 different (or outside), 2 trouble,
/// as diff(1). Data goes to stdout, talk to stderr.
int fs_diff(int argc, char** argv);

}  // namespace heddle
