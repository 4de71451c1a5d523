// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>

#include "base/result.hpp"
#include "resolver/map/map_content.hpp"

namespace heddle {

/// Of a .py file, by its path and mode.
using IsWanted = std::function<bool(const std::string&, std::uint32_t)>;

/// Adds to the trees of a map the compiled forms (`__pycache__/x.TAG.pyc`) that its Python files
/// lack, and replaces those that Python would not take, as they are of another source: a tree is
/// served read-only, so that otherwise each process would compile them. The map's own interpreter
/// makes them in `directory`, and only if root and this user alone can change it. Result: the file
/// of each such path; empty: there is none, or no interpreter can make them, of which it warns.
Result<std::map<std::string, std::string>> compile_python(MapContent& content,
                                                          const IsWanted& is_wanted,
                                                          const std::string& directory);

}  // namespace heddle
