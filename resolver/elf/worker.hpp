// SPDX-License-Identifier: MIT
#pragma once

namespace heddle {

/// The program elf-worker: reads requests from socket kWorkerSocket and answers them from inside
/// its sandbox until the pool closes its end. `--self-test CALL` closes the sandbox, makes one
/// system call of that kind and returns 0: it is there so that a test can see SIGSYS.
int worker_main(int argc, char** argv);

}  // namespace heddle
