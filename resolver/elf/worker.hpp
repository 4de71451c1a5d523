// SPDX-License-Identifier: MIT
#pragma once

// The program elf-worker, in parts that tests call.

#include "resolver/elf/worker_protocol.hpp"

namespace heddle {

/// The sandbox for a parser that the bytes it reads may subvert: no descriptor but `socket` and a
/// null stdin, stdout and stderr; limits on memory (`memory` bytes) and file size, no core; no
/// capabilities and no new privileges; no file to open (Landlock, where the kernel has it); and a
/// seccomp filter that allows memory, time, pread, poll, close and messages on `socket`. Any other
/// system call kills the process with SIGSYS. Open in a build with sanitizers
/// (base/sandbox/sanitized.hpp).
Result<void> enter_sandbox(int socket, std::uint64_t memory);

/// Lets the process use `seconds` more of CPU time before SIGXCPU ends it; works inside the
/// sandbox.
void allow_cpu_time(unsigned seconds);

/// Reads the file behind `fd`, of the request's size: its hash, the loader's facts, and with
/// FactsDetail::symbols its symbols, by LIEF. Errors have the codes of FactsSource::facts and no
/// path.
Result<Reply> read_elf(int fd, const Request& request);

/// Reads requests from the socket kWorkerSocket and answers them from inside the sandbox until the
/// pool closes its end. `memory`: the sandbox's limit.
int serve_requests(std::uint64_t memory);

}  // namespace heddle
