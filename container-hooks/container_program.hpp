// SPDX-License-Identifier: MIT
#pragma once

#include <optional>
#include <string>

#include "container-hooks/container_config.hpp"

namespace heddle {

/// The file that the container's first word names in its root, found as the runtime finds it: by
/// its PATH, or from its working folder. nullopt: there is none, which the runtime says itself.
std::optional<std::string> container_program(const ContainerConfig& config);

}  // namespace heddle
