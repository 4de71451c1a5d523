// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace heddle {

/// Scripts that may lead to one another: a sixth execve(2) refuses (fs/exec.c, exec_binprm).
inline constexpr int kMostScripts = 5;
/// Bytes of a file that execve(2) looks at (<linux/binfmts.h>, BINPRM_BUF_SIZE).
inline constexpr std::size_t kFirstLine = 256;

/// What execve(2) starts for a file that begins with `bytes`: "/usr/bin/python3" of
/// "#! /usr/bin/python3 -E\n". Empty: no script.
std::string script_interpreter(std::string_view bytes);

}  // namespace heddle
