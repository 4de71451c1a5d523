// SPDX-License-Identifier: MIT
#pragma once

#include <string>
#include <vector>

namespace heddle::test {

struct SourceFile {
  std::string path;  ///< from the project's root: "resolver/map/map_file.cpp"
  std::string content;
};

/// Every breach of the project's layout in `files`, as `path:line: what`: a directory that includes
/// one it must not know, a library's header outside its one directory, an include that is not from
/// the root, a *_main that is used, a missing SPDX line or #pragma once, `using namespace`, a name
/// that is not snake_case, a directory without a rule.
std::vector<std::string> breaches(const std::vector<SourceFile>& files);

/// All *.cpp, *.hpp, *.c and *.h below `root`, hidden and build directories left out, sorted by
/// path. Throws heddle::Error.
std::vector<SourceFile> read_sources(const std::string& root);

}  // namespace heddle::test
