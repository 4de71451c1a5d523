// SPDX-License-Identifier: MIT
#pragma once

#include <string>
#include <vector>

#include "base/result.hpp"
#include "compat/target.hpp"

namespace heddle::compat {

/// The ELF files for a user's `names`: an ELF file itself (searched in PATH when it has no slash
/// and `root` is empty), a script's interpreter, a directory's dynamic programs. With `root`, files
/// and directories of that root. Results are paths of `node`. Fails when a name is none of these.
Result<std::vector<std::string>> find_binaries(NodeTarget& node, const std::string& root,
                                               const std::vector<std::string>& names);

/// What the program or library at `path` (a path of `node`) needs, with the libraries that ld.so
/// would give it there, or that `map` has for it. Missing libraries are unresolved; they and a
/// missing loader are no failure. Fails when `path` is no ELF file or cannot be read.
Result<Program> describe(NodeTarget& node, FactsSource& facts, const std::string& path,
                         MapTarget* map = nullptr);

/// Adds as dlopened the shared libraries among `paths` that the program does not have yet.
void add_dlopened(NodeTarget& node, Program& program, const std::vector<std::string>& paths);

}  // namespace heddle::compat
