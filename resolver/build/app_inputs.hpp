// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/result.hpp"

namespace heddle {

enum class RootIs : std::uint8_t {
  program,  ///< runs from where it lies and is guided: not itself in the view
  library,  ///< a library of a directory: in a view of its own, with nothing to guide
};

/// One ELF file whose closure goes into a map.
struct AppRoot {
  std::string path;  ///< absolute, symlink-free
  RootIs kind = RootIs::program;
  /// Named by the user, or needed by what was named: trouble with it is an error. A file that only
  /// happened to lie in a directory is left out with a note.
  bool required = true;
};

/// The files behind what a user names as APP. A script stands for its interpreter, the
/// interpreter's own script interpreter, and what `#!/usr/bin/env NAME` finds in $PATH.
struct AppInputs {
  std::vector<AppRoot> roots;      ///< unique by path
  std::vector<std::string> notes;  ///< files left out, and why: "path: reason"
};

/// Adds what `app` (a program, a script or a directory, which is walked without following links out
/// of it) stands for. Static programs are noted and left out. Fails when `app` itself is none of
/// these.
Result<void> add_app(AppInputs& out, const std::string& app);

}  // namespace heddle
