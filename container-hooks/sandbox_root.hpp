// SPDX-License-Identifier: MIT
#pragma once

#include <string>
#include <vector>

#include "container-hooks/container_config.hpp"

namespace heddle {

/// Makes `rootfs`, in this process's own mount namespace, what a container's root is before its
/// program starts: volumes in their places, an empty /dev. All of it but /dev is read-only, and
/// nothing is written to the image: a place for a volume that it lacks is made in an overlay.
Result<void> make_sandbox_root(const std::string& rootfs, const std::vector<Volume>& volumes);

}  // namespace heddle
