// SPDX-License-Identifier: MIT
#pragma once

#include <string>

#include "base/result.hpp"

namespace heddle {

/// The path that execvp(3) would start for `name`, as a shell would hand it to the kernel: a name
/// with a slash is taken as it is, another is looked for in $PATH. It is what a script sees as $0,
/// so it is not made absolute. Fails with ENOENT or EACCES, as the shell's 127 and 126 want to be
/// told apart.
Result<std::string> find_program(const std::string& name);
Result<std::string> find_program(const std::string& name, const std::string& path_variable);

/// Says that `name` cannot be run, `error` being the errno, and which interpreter it lacks. Result:
/// the exit status that a shell gives for it, 127 for a program that is not there, else 126.
int report_exec_failure(const std::string& name, int error);

}  // namespace heddle
