// SPDX-License-Identifier: MIT
#include "fuseovl/mount/stats_attribute.hpp"

#include <sys/xattr.h>

namespace heddle {

Result<std::string> read_stats_text(const std::string& directory) {
  std::string text(kMostStatsBytes, '\0');
  const auto size = ::getxattr(directory.c_str(), kStatsAttribute, text.data(), text.size());
  if (size < 0) return fail_errno(directory, "cannot read counters");
  text.resize(static_cast<std::size_t>(size));
  return text;
}

}  // namespace heddle
