// SPDX-License-Identifier: MIT
#include "base/script_interpreter.hpp"

namespace heddle {

std::string script_interpreter(std::string_view bytes) {
  if (!bytes.starts_with("#!")) return {};
  bytes = bytes.substr(0, kFirstLine);
  const auto begin = bytes.find_first_not_of(" \t", 2);
  if (begin == bytes.npos) return {};
  constexpr std::string_view kEnds(" \t\n\0", 4);
  return std::string(bytes.substr(begin, bytes.find_first_of(kEnds, begin) - begin));
}

}  // namespace heddle
