// SPDX-License-Identifier: MIT
#pragma once

#include <string>
#include <vector>

namespace heddle::test {

/// One ELF file made from C or C++ source by cc or c++.
struct ElfBuild {
  std::string output;  ///< its directory is made when missing
  std::string source = "";
  /// Behind the source on the command line, so libraries are possible: {"-Wl,-soname,libx.so.1",
  /// "/d/liby.so"}.
  std::vector<std::string> flags = {};
  std::string language = "c";  ///< or "c++"
};

/// `cc -O1 -shared -fPIC`. Returns `output`; throws heddle::Error with the compiler's message.
std::string build_library(const ElfBuild& build);
/// As build_library(), a position-independent program.
std::string build_program(const ElfBuild& build);

/// Writes `content` to `path`, making its directory; `mode` as in chmod(2). Throws heddle::Error.
std::string write_text_file(const std::string& path, const std::string& content,
                            unsigned mode = 0644);

}  // namespace heddle::test
