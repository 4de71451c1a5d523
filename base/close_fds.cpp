// SPDX-License-Identifier: MIT
#include "base/close_fds.hpp"

#include <dirent.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <climits>
#include <cstdlib>
#include <vector>

namespace heddle {
namespace {

/// Up to a thousand million numbers may be allowed: only those in use, as far as they can be known.
void close_one_by_one(unsigned from, unsigned last) {
  std::vector<unsigned> open;
  DIR* folder = ::opendir("/proc/self/fd");
  if (!folder) {
    const auto most = static_cast<unsigned>(std::max(::sysconf(_SC_OPEN_MAX), 1024L));
    for (unsigned fd = from; fd < most && fd <= last; ++fd) ::close(static_cast<int>(fd));
    return;
  }
  while (const dirent* entry = ::readdir(folder))
    if (*entry->d_name != '.')
      open.push_back(static_cast<unsigned>(std::strtoul(entry->d_name, nullptr, 10)));
  ::closedir(folder);
  for (const unsigned fd : open)
    if (fd >= from && fd <= last) ::close(static_cast<int>(fd));
}

void close_range(unsigned from, unsigned last) {
  if (from > last || ::syscall(SYS_close_range, from, last, 0U) == 0) return;
  close_one_by_one(from, last);
}

}  // namespace

void close_fds_but(std::span<const int> keep) {
  std::vector<int> sorted(keep.begin(), keep.end());
  std::sort(sorted.begin(), sorted.end());
  unsigned from = 3;
  for (const int fd : sorted) {
    if (fd < static_cast<int>(from)) continue;
    close_range(from, static_cast<unsigned>(fd) - 1);
    from = static_cast<unsigned>(fd) + 1;
  }
  close_range(from, UINT_MAX);
}

}  // namespace heddle
