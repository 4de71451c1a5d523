// SPDX-License-Identifier: MIT
#pragma once

#include <cstdlib>
#include <string>

namespace heddle::test {

/// `path` in the source tree: in $HEDDLE_SOURCE, else in the working directory.
inline std::string source_file(const std::string& path) {
  const char* root = std::getenv("HEDDLE_SOURCE");
  return std::string(root ? root : ".") + "/" + path;
}

}  // namespace heddle::test
