// SPDX-License-Identifier: MIT
#include "fuseovl/stats_reader.hpp"

#include "fuseovl/mount/stats_attribute.hpp"

namespace heddle {

Result<nlohmann::ordered_json> read_stats(const std::string& directory, std::string_view what) {
  const auto text = read_stats_text(directory);
  if (!text) {
    const int code = text.error().code();
    if (code == ENOENT || code == ENOTDIR || code == ENODATA || code == EOPNOTSUPP)
      return fail(directory, what, "no heddle mount is here");
    const char* hint = code == ENOTCONN ? "its daemon has died: unmount it with fs-mount -u" : "";
    return fail_errno(directory, what, code, hint);
  }
  auto stats = nlohmann::ordered_json::parse(*text, nullptr, false);
  if (!stats.is_object()) return fail(directory, what, "its counters cannot be understood");
  return stats;
}

}  // namespace heddle
