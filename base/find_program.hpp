// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.hpp"

namespace heddle {

/// The path that execvp(3) would execute for `name`: itself if it has a slash, else the match in
/// $PATH. It is a script's $0, so it is not made absolute. Failure: ENOENT or EACCES, a shell's 127
/// and 126.
Result<std::string> find_program(const std::string& name);
Result<std::string> find_program(const std::string& name, const std::string& path_variable);

/// Reports that `name` cannot be executed because of errno `error`, or of which missing
/// interpreter. Result: a shell's exit status, 127 for a missing program, else 126.
int report_exec_failure(const std::string& name, int error);

/// The longest chain of script interpreters that execve(2) accepts (fs/exec.c, exec_binprm).
inline constexpr int kMostScripts = 5;
/// The bytes of a file that execve(2) reads (<linux/binfmts.h>, BINPRM_BUF_SIZE).
inline constexpr std::size_t kFirstLine = 256;

/// The interpreter that execve(2) runs for a script that begins with `bytes`: "/usr/bin/python3" of
/// "#! /usr/bin/python3 -E\n". Empty: not a script.
std::string script_interpreter(std::string_view bytes);

/// The program that env(1) starts for such a script: NAME of `#!/usr/bin/env [-S]
/// [VARIABLE=VALUE...] NAME`; `arguments` gets the words behind NAME. Empty: its interpreter is
/// another.
std::string env_program(std::string_view bytes, std::vector<std::string>* arguments = nullptr);

struct ShellCommand {
  std::vector<std::string> assignments;
  std::vector<std::string> words;  ///< the program's name, and what follows, not unquoted
};
/// A command for sh -c, without `exec`. Empty: it is more than one command, or the shell makes the
/// program's name.
ShellCommand one_command(const std::string& text);

}  // namespace heddle
