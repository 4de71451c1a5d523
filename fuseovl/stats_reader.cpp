// SPDX-License-Identifier: MIT
#include "fuseovl/stats_reader.hpp"

#include "base/fd.hpp"

namespace heddle {

Result<nlohmann::ordered_json> read_stats(const std::string& directory, std::string_view what) {
  // ESTALE: so many read it at once that our page was given up before we had it.
  auto text = read_file(directory + "/.heddle/stats");
  for (int tries = 1; !text && text.error().code() == ESTALE && tries < 100; ++tries)
    text = read_file(directory + "/.heddle/stats");
  if (!text) {
    const int code = text.error().code();
    if (code == ENOENT || code == ENOTDIR) return fail(directory, what, "no heddle mount is here");
    const char* hint = code == ENOTCONN ? "its daemon has died: unmount it with fs-mount -u" : "";
    return fail_errno(directory, what, code, hint);
  }
  auto stats = nlohmann::ordered_json::parse(*text, nullptr, false);
  if (!stats.is_object()) return fail(directory, what, "its counters cannot be understood");
  return stats;
}

}  // namespace heddle
