// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <string_view>

namespace heddle::test {

/// How often `text` contains `what`.
inline std::size_t occurrences(std::string_view text, std::string_view what) {
  std::size_t out = 0;
  for (auto at = text.find(what); at != text.npos; at = text.find(what, at + 1)) ++out;
  return out;
}

}  // namespace heddle::test
