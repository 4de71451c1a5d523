// SPDX-License-Identifier: MIT
#include "base/launch/rank.hpp"

#include <unistd.h>

#include <charconv>
#include <cstdlib>
#include <cstring>

#include "base/rank_mark.hpp"

namespace heddle {

std::optional<int> rank_from_environment() {
  for (const char* name : kRankVariables) {
    const char* text = std::getenv(name);
    if (!text) continue;
    int rank = 0;
    const char* end = text + std::strlen(text);
    const auto got = std::from_chars(text, end, rank);
    if (got.ec == std::errc() && got.ptr == end && rank >= 0) return rank;
  }
  return std::nullopt;
}

std::string host_name() {
  char name[256] = {};
  if (::gethostname(name, sizeof(name) - 1) != 0) return "localhost";
  return name;
}

}  // namespace heddle
