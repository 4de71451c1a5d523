// SPDX-License-Identifier: MIT
#pragma once

#include <string>
#include <vector>

#include "base/result.hpp"
#include "compat/node_target.hpp"

namespace heddle::compat {

/// The ELF files behind what a user names: an ELF file itself (searched in PATH when it has no
/// slash and there is no `root`), a script's interpreter, a folder's dynamic programs (below
/// `root`: folders of that root). Paths as `node` names them. Fails when one is none of these.
Result<std::vector<std::string>> find_binaries(NodeTarget& node, const std::string& root,
                                               const std::vector<std::string>& names);

}  // namespace heddle::compat
