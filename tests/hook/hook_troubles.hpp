// SPDX-License-Identifier: MIT
#pragma once

#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/hook/container_world.hpp"

namespace heddle::test {

/// A failure for which a container must not start. Tests cause each, bench/ measures how soon the
/// container ends.
struct HookTrouble {
  std::string name;
  std::string line;  ///< part of its line in the hook's log
  std::function<void(ContainerWorld&, Json&)> make = {};
  std::vector<std::string> before = {};  ///< a command that runs the runtime
};

const std::vector<HookTrouble>& hook_troubles();

}  // namespace heddle::test
