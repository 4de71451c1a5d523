// SPDX-License-Identifier: MIT
#pragma once

#include <string>
#include <vector>

#include "base/result.hpp"
#include "compat/artifact.hpp"
#include "compat/map_target.hpp"
#include "compat/node_target.hpp"

namespace heddle::compat {

/// What the program or library at `path` (as `node` names it) needs, with the libraries that ld.so
/// would give it there. Libraries that are missing are unresolved, no failure; nor is it one that
/// its loader is missing. Fails when `path` is no ELF file, or cannot be read.
Result<Program> describe(NodeTarget& node, FactsSource& facts, const std::string& path);

/// As describe(), with the libraries that `map` has for it instead of a search.
Result<Program> describe(NodeTarget& node, FactsSource& facts, MapTarget& map,
                         const std::string& path);

/// Adds the shared libraries among `paths` that are not among the program's, as dlopened.
void add_dlopened(NodeTarget& node, Program& program, const std::vector<std::string>& paths);

}  // namespace heddle::compat
