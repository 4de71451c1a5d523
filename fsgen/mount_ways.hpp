// SPDX-License-Identifier: MIT
#pragma once

#include <string>
#include <vector>

#include "fsgen/gen_options.hpp"

namespace heddle {

/// The ways to bring the map before APP, in the order to try: the one that was asked for, or, for
/// Via::best, all that this user can hope for. None of the result is Via::best.
std::vector<Via> ways_to_try(Via wanted);

/// As the report names it.
std::string name_of(Via via);

/// What APP meets under this way that it does not meet without; one short sentence each.
std::vector<std::string> limits_of(Via via);

/// What this way needs, for who asked for it and cannot have it.
std::string hint_for(Via via);

}  // namespace heddle
