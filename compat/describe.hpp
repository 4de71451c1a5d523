// SPDX-License-Identifier: MIT
#pragma once

#include <string>
#include <vector>

#include "base/result.hpp"
#include "compat/target.hpp"

namespace heddle::compat {

/// The ELF files behind what a user names: an ELF file itself (searched in PATH when it has no
/// slash and there is no `root`), a script's interpreter, a directory's dynamic programs (below
/// `root`: directories of that root). Paths as `node` names them. Fails when one is none of these.
Result<std::vector<std::string>> find_binaries(NodeTarget& node, const std::string& root,
                                               const std::vector<std::string>& names);

/// What the program or library at `path` (as `node` names it) needs, with the libraries that ld.so
/// would give it there, or that `map` has for it. Libraries that are missing are unresolved, no
/// failure; nor is it one that its loader is missing. Fails when `path` is no ELF file, or cannot
/// be read.
Result<Program> describe(NodeTarget& node, FactsSource& facts, const std::string& path,
                         MapTarget* map = nullptr);

/// Adds the shared libraries among `paths` that are not among the program's, as dlopened.
void add_dlopened(NodeTarget& node, Program& program, const std::vector<std::string>& paths);

}  // namespace heddle::compat
