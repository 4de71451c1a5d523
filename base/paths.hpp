// SPDX-License-Identifier: MIT
#pragma once

#include <cstdlib>
#include <string>
#include <string_view>

namespace heddle {

/// The text before the last slash of `path`, which has one: "/usr/lib" of "/usr/lib/libc.so", "" of
/// "/init".
inline std::string directory_of(const std::string& path) { return path.substr(0, path.rfind('/')); }

/// The text after the last slash; all of a path that has none.
inline std::string base_name(const std::string& path) { return path.substr(path.rfind('/') + 1); }

/// By the names alone, of paths without a slash at their end.
inline bool is_at_or_below(std::string_view path, std::string_view directory) {
  return path.starts_with(directory) &&
         (directory == "/" || path.size() == directory.size() || path[directory.size()] == '/');
}

/// `name`, as "/heddle", in the directory that an XDG `variable` names, else in `otherwise` of HOME
/// ("/.config"). Empty: neither is set to an absolute path.
inline std::string below_home(const char* variable, const std::string& otherwise,
                              const std::string& name) {
  if (const char* set = std::getenv(variable); set && *set == '/') return set + name;
  const char* home = std::getenv("HOME");
  return home && *home == '/' ? home + otherwise + name : std::string();
}

}  // namespace heddle
