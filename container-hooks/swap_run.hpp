// SPDX-License-Identifier: MIT
#pragma once

#include "container-hooks/container_config.hpp"
#include "container-hooks/hook_log.hpp"
#include "container-hooks/oci_hook.hpp"
#include "container-hooks/swap_request.hpp"

namespace heddle {

/// Puts the host's MPI into one container, or says in the log that there is nothing to swap. On
/// failure the container is as it was.
Result<void> run_swap(const HookSettings& settings, const ContainerState& state,
                      const SwapRequest& request, HookLog& log);

}  // namespace heddle
