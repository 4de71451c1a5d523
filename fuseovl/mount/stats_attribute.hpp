#pragma once
#include <string>
#include "base/fd.hpp"
namespace heddle {
inline Result<std::string> read_stats_text(const std::string& directory) {
  return read_file(directory + "/.heddle/stats");
}
}  // namespace heddle
