// SPDX-License-Identifier: MIT
#pragma once

#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/hook/container_world.hpp"

namespace heddle::test {

/// Something for which a container must not start: one line in the log says it. Tests make each,
/// bench/ takes the time of the container's end.
struct HookTrouble {
  std::string name;
  std::string line;  ///< part of that line
  std::function<void(ContainerWorld&, nlohmann::json&)> make = {};
  std::vector<std::string> before = {};  ///< words before the runtime's
};

const std::vector<HookTrouble>& hook_troubles();

}  // namespace heddle::test
