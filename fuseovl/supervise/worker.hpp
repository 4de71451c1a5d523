// SPDX-License-Identifier: MIT
#pragma once

#include "fuseovl/supervise/serve.hpp"
#include "fuseovl/supervise/worker_sandbox.hpp"

namespace heddle {

/// The worker, in the process just forked from `supervisor`: answers the kernel until the file
/// system is gone (exit 0) or the session cannot go on (exit 1, the reason in the overlay's state).
/// Keeps nothing open but the device, the overlay's files and `options.ready`, and no rights but
/// what `sandbox` leaves.
[[noreturn]] void work(Overlay& overlay, const Fd& device, const ServeOptions& options,
                       WorkerSandbox& sandbox, pid_t supervisor);

}  // namespace heddle
