// SPDX-License-Identifier: MIT
#pragma once

#include <sys/xattr.h>

#include <cstddef>
#include <string>

#include "base/result.hpp"

namespace heddle {

/// The extended attribute of a mount's root directory that holds the statistics of the moment as
/// JSON (docs/formats/report.md). Readable by those who may read the directory.
inline constexpr const char* kStatsAttribute = "user.heddle.stats";
/// XATTR_SIZE_MAX in linux/limits.h.
inline constexpr std::size_t kMostStatsBytes = 65536;

/// The statistics of the mount at `directory`. Failures of getxattr(2); ENODATA or EOPNOTSUPP: it
/// is no heddle mount.
inline Result<std::string> read_stats_text(const std::string& directory) {
  std::string text(kMostStatsBytes, '\0');
  const auto size = ::getxattr(directory.c_str(), kStatsAttribute, text.data(), text.size());
  if (size < 0) return fail_errno(directory, "cannot read counters");
  text.resize(static_cast<std::size_t>(size));
  return text;
}

}  // namespace heddle
