// SPDX-License-Identifier: MIT
#include "fuseovl/stats_reader.hpp"

#include <chrono>
#include <thread>

#include "base/fd.hpp"

namespace heddle {

Result<nlohmann::ordered_json> read_stats(const std::string& directory, std::string_view what) {
  // Read while a reload goes on, or while drift is found, the page may be of two moments.
  for (int tries = 0; tries < 100; ++tries) {
    auto text = read_file(directory + "/.heddle/stats");
    if (!text) {
      const int code = text.error().code();
      if (code == ENOENT || code == ENOTDIR)
        return fail(directory, what, "no heddle mount is here");
      return fail_errno(directory, what, code);
    }
    auto stats = nlohmann::ordered_json::parse(*text, nullptr, false);
    if (stats.is_object()) return stats;
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  return fail(directory, what, "its counters cannot be understood");
}

}  // namespace heddle
