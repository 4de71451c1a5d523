// SPDX-License-Identifier: MIT
#pragma once

#include <string>

#include "resolver/policy/decision.hpp"

namespace heddle {

/// docs/formats/container.md, with a newline at its end.
std::string container_json(const Decision& decision);

/// The same for people, from the document. Fails on another version.
void print_container(const std::string& json, const std::string& name);

}  // namespace heddle
