// SPDX-License-Identifier: MIT
#include "fuseovl/keep/mounted_notice.hpp"

#include <cstdio>
#include <string_view>

namespace heddle {

std::string to_text(const MountedNotice& notice) {
  return std::string(notice.warm ? "warm " : "cold ") + std::to_string(notice.requests) + " " +
         std::to_string(notice.bytes_read) + " " + notice.mount_point;
}

Result<MountedNotice> parse_mounted_notice(const std::string& text) {
  char state[5] = {};
  unsigned long long requests = 0;
  unsigned long long bytes = 0;
  int end = 0;
  if (std::sscanf(text.c_str(), "%4s %llu %llu %n", state, &requests, &bytes, &end) != 3 ||
      end <= 0 || text[static_cast<std::size_t>(end)] != '/')
    return fail("fs-mount", "cannot understand it", "is it of another version?");
  return MountedNotice{std::string_view(state) == "warm", requests, bytes,
                       text.substr(static_cast<std::size_t>(end))};
}

}  // namespace heddle
