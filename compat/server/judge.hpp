// SPDX-License-Identifier: MIT
#pragma once

namespace heddle {

/// The helper libexec/heddle/compat-judge: compat-server's processes that open files. A file system
/// that hangs, or an artifact that eats memory, costs one of them, and the server goes on.
///   compat-judge judge [OPTIONS]   answers Questions until the socket's other end is closed
///   compat-judge watch [OPTIONS]   reads all libraries into the index, then tells of changes
/// Result: its exit status.
int compat_judge(int argc, const char* const* argv);

}  // namespace heddle
