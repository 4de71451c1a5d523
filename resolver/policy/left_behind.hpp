// SPDX-License-Identifier: MIT
#pragma once

#include <string>
#include <vector>

#include "resolver/policy/container_side.hpp"
#include "resolver/policy/side_choice.hpp"

namespace heddle {

/// A line for each library of the container that stays and wants symbols of a library that becomes
/// the host's, which the container's has and the host's lacks. Mostly a part of the container's MPI
/// that its own launcher and tools load, and the swapped program no longer does (libopen-pal.so.80
/// of Open MPI 5, where the host has Open MPI 4 and an older PMIx): they fail from now on.
std::vector<std::string> left_behind(ContainerSide& inside, SymbolReader& inside_symbols,
                                     SymbolReader& host_symbols, const SideChoice& sides,
                                     const ContainerStack& stack);

}  // namespace heddle
