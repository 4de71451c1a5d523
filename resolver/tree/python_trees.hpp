// SPDX-License-Identifier: MIT
#pragma once

// Which directories a Python program imports from, without running it: what CPython's getpath.py
// and site.py would put into sys.path, and the prefixes that it lies in.

#include <string>
#include <vector>

namespace heddle {

/// As realpath(3); empty: there is no such file.
std::string canonical_path(const std::string& path);
/// Both absolute; a directory is not below itself.
bool is_below(const std::string& path, const std::string& directory);

/// A directory that a program reads much of.
struct FoundTree {
  std::string path;      ///< canonical, or as it was named if it does not exist
  std::string found_as;  ///< "site-packages", "PYTHONPATH", "/opt/venv/lib/x.pth", ...
  std::string left_out;  ///< why it cannot be a tree; empty: it can
};

struct PythonTrees {
  std::string
      interpreter;     ///< absolute, symbolic links not followed; empty: `command` is no Python
  std::string script;  ///< absolute; empty: none
  /// For TreeRequest::never: the working directory, $HOME, and the script's directory unless it is
  /// the interpreter's (/opt/venv/bin/pytest).
  std::vector<std::string> in_use;
  std::vector<FoundTree> trees;  ///< in the order of sys.path; some may be within others
};

/// `command`: the program, searched in the PATH of `environment` (NAME=value) from `cwd`, and its
/// arguments. It may be an interpreter, a script whose #! line leads to one, or a launcher that is
/// given one (mpiexec -n 2 python3 x.py). Files of others are read: a hostile one can only name
/// directories, which read_trees() then judges.
PythonTrees find_python_trees(const std::vector<std::string>& command,
                              const std::vector<std::string>& environment, const std::string& cwd);

}  // namespace heddle
