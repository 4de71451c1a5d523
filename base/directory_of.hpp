// SPDX-License-Identifier: MIT
#pragma once

#include <string>

namespace heddle {

/// What stands before the last slash of `path`, by its text alone: "/usr/lib" of
/// "/usr/lib/libc.so", "" of "/init". `path` has a slash.
inline std::string directory_of(const std::string& path) { return path.substr(0, path.rfind('/')); }

}  // namespace heddle
