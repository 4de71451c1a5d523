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
  /// The user named it: failing to resolve it is an error. A file found in a directory is skipped
  /// with a note.
  bool required = true;
};

/// The ELF files behind an APP. For a script: its interpreters, and what `#!/usr/bin/env NAME`
/// finds in $PATH.
struct AppInputs {
  std::vector<AppRoot> roots;      ///< unique by path
  std::vector<std::string> notes;  ///< skipped files: "path: reason"
};

/// Adds the files of `app`: a program, a script, or a directory, which is walked without following
/// links. Static programs are skipped with a note. Fails when `app` is none of these.
Result<void> add_app(AppInputs& out, const std::string& app);

}  // namespace heddle
