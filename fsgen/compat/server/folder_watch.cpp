// SPDX-License-Identifier: MIT
#include "fsgen/compat/server/folder_watch.hpp"

#include <sys/inotify.h>

#include <array>
#include <cerrno>

namespace heddle::compat {

Result<FolderWatch> FolderWatch::open() {
  Fd fd(::inotify_init1(IN_CLOEXEC | IN_NONBLOCK));
  if (!fd) return fail_errno("inotify", "cannot watch for changes");
  return FolderWatch(std::move(fd));
}

std::size_t FolderWatch::add(const std::vector<std::string>& folders) {
  std::size_t lost = 0;
  for (const auto& folder : folders) {
    // IN_ATTRIB: a mode that makes a library unreadable. A folder watched already stays so.
    const auto mask = IN_CLOSE_WRITE | IN_CREATE | IN_DELETE | IN_MOVED_FROM | IN_MOVED_TO |
                      IN_ATTRIB | IN_DELETE_SELF | IN_MOVE_SELF | IN_ONLYDIR;
    if (::inotify_add_watch(fd_.get(), folder.c_str(), mask) < 0 && errno != ENOENT &&
        errno != ENOTDIR)
      ++lost;
  }
  return lost;
}

bool FolderWatch::drain() {
  bool any = false;
  alignas(inotify_event) std::array<char, 16384> buffer;
  while (::read(fd_.get(), buffer.data(), buffer.size()) > 0) any = true;
  return any;
}

}  // namespace heddle::compat
