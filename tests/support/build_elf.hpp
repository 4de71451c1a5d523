// SPDX-License-Identifier: MIT
#pragma once

#include <string>
#include <vector>

namespace heddle::test {

/// One ELF file made from C or C++ source by the system's compiler ($CC, $CXX, else cc and c++).
struct ElfBuild {
  std::string output;  ///< the file to make; its directory is made too
  std::string source = "";
  /// After the source on the command line, so libraries may stand here: {"-Wl,-soname,libx.so.1",
  /// dir
  /// + "/liby.so"}.
  std::vector<std::string> flags = {};
  std::string language = "c";  ///< or "c++"
};

/// `cc -shared -fPIC`, -O1. Returns `output`; throws heddle::Error with the compiler's words.
std::string build_library(const ElfBuild& build);
/// As build_library(), a position-independent program.
std::string build_program(const ElfBuild& build);

/// Writes `content` to `path`, making its directory; `mode` as in chmod(2). Throws heddle::Error.
std::string write_text_file(const std::string& path, const std::string& content,
                            unsigned mode = 0644);

}  // namespace heddle::test
