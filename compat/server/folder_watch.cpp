// SPDX-License-Identifier: MIT
#include "compat/server/folder_watch.hpp"

#include <sys/inotify.h>
#include <sys/stat.h>

#include <array>
#include <cerrno>

namespace heddle::compat {

Result<FolderWatch> FolderWatch::open() {
  Fd fd(::inotify_init1(IN_CLOEXEC | IN_NONBLOCK));
  if (!fd) return fail_errno("inotify", "cannot watch for changes");
  return FolderWatch(std::move(fd));
}

FolderWatch::Added FolderWatch::add(const std::vector<std::string>& folders) {
  Added out;
  for (const auto& folder : folders) {
    // An older stamp stays: look() is to tell of what came since.
    if (!seen_.contains(folder)) out.any_new = seen_.emplace(folder, stamp_of(folder)).second;
    // IN_ATTRIB: a mode that makes a library unreadable. A folder watched already stays so.
    const auto mask = IN_CLOSE_WRITE | IN_CREATE | IN_DELETE | IN_MOVED_FROM | IN_MOVED_TO |
                      IN_ATTRIB | IN_DELETE_SELF | IN_MOVE_SELF | IN_ONLYDIR | IN_DONT_FOLLOW;
    if (::inotify_add_watch(fd_.get(), folder.c_str(), mask) < 0 && errno != ENOENT &&
        errno != ENOTDIR)
      ++out.lost;
  }
  return out;
}

FolderWatch::Stamp FolderWatch::stamp_of(const std::string& folder) {
  struct stat now {};
  if (::lstat(folder.c_str(), &now) != 0) return {};
  return {static_cast<std::int64_t>(now.st_dev), static_cast<std::int64_t>(now.st_ino),
          now.st_mtim.tv_sec, now.st_mtim.tv_nsec};
}

bool FolderWatch::look() {
  bool any = false;
  for (auto& [folder, stamp] : seen_) {
    const auto now = stamp_of(folder);
    any = any || now != stamp;
    stamp = now;
  }
  return any;
}

bool FolderWatch::drain() {
  bool any = false;
  alignas(inotify_event) std::array<char, 16384> buffer;
  while (::read(fd_.get(), buffer.data(), buffer.size()) > 0) any = true;
  return any;
}

}  // namespace heddle::compat
