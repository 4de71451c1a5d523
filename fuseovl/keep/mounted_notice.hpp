// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <string>

#include "base/result.hpp"

namespace heddle {

/// What the daemon of a kept mount says of it: the text of MountWord::mounted.
struct MountedNotice {
  bool warm = false;             ///< everything that can be kept has been asked for already
  std::uint64_t requests = 0;    ///< answered so far
  std::uint64_t bytes_read = 0;  ///< handed out so far
  std::string mount_point;
};
std::string to_text(const MountedNotice& notice);
Result<MountedNotice> parse_mounted_notice(const std::string& text);

}  // namespace heddle
