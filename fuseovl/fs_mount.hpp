// SPDX-License-Identifier: MIT
#pragma once

namespace heddle {

/// The program fs-mount: argv in, exit status out (base/exit_code.hpp). Without -f it forks and
/// returns in the calling process when the mount answers.
int fs_mount_main(int argc, char** argv);

}  // namespace heddle
