// SPDX-License-Identifier: MIT
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "base/fd.hpp"

namespace heddle::compat {

/// Tells that something changed in some folders, not what: inotify, and their times for what it
/// does not tell (folders that are made anew, links that lead elsewhere, changes by other nodes).
class FolderWatch {
 public:
  static Result<FolderWatch> open();
  /// Readable when there is something for drain().
  int fd() const { return fd_.get(); }
  struct Added {
    std::size_t lost = 0;  ///< not watched, though they exist
    bool any_new = false;  ///< what was seen of a folder before is not known to hold
  };
  /// Watches `folders` too, links to folders as links; what does not exist yet, or is beyond the
  /// user's limit, by look() alone.
  Added add(const std::vector<std::string>& folders);
  /// Takes what there is; true when it was a change that may matter.
  bool drain();
  /// Whether a folder is another one than when this was last asked, or has another time.
  bool look();

 private:
  explicit FolderWatch(Fd fd) : fd_(std::move(fd)) {}
  using Stamp = std::array<std::int64_t, 4>;  ///< dev, ino, mtime; zeroes: there is none
  static Stamp stamp_of(const std::string& folder);

  Fd fd_;
  std::map<std::string, Stamp> seen_;
};

}  // namespace heddle::compat
