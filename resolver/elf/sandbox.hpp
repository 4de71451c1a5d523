// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>

#include "base/result.hpp"

namespace heddle {

/// Closes this process in for reading untrusted bytes with a parser that may be subverted by them:
/// no descriptor but `socket` and a null stdin, stdout and stderr; limits on memory (`memory`
/// bytes) and file size, no core; no capabilities and no new privileges; no file to open (Landlock,
/// where the kernel has it); and a seccomp filter that allows memory, time, pread, close and
/// messages on `socket`. Any other system call kills the process with SIGSYS. There is no way back.
/// Open in a build with sanitizers (base/sandbox/sanitized.hpp).
Result<void> enter_sandbox(int socket, std::uint64_t memory);

/// Lets the process use `seconds` more of CPU time before SIGXCPU ends it; works inside the
/// sandbox.
void allow_cpu_time(unsigned seconds);

}  // namespace heddle
