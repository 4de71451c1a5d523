// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

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

/// Scripts that may lead to one another: a sixth execve(2) refuses (fs/exec.c, exec_binprm).
inline constexpr int kMostScripts = 5;
/// Bytes of a file that execve(2) looks at (<linux/binfmts.h>, BINPRM_BUF_SIZE).
inline constexpr std::size_t kFirstLine = 256;

/// What execve(2) starts for a file that begins with `bytes`: "/usr/bin/python3" of
/// "#! /usr/bin/python3 -E\n". Empty: no script.
std::string script_interpreter(std::string_view bytes);

}  // namespace heddle
