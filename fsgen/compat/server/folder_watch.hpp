// SPDX-License-Identifier: MIT
#pragma once

#include <string>
#include <unordered_set>
#include <vector>

#include "base/fd.hpp"

namespace heddle::compat {

/// inotify over some folders: tells that something changed in one, not what.
class FolderWatch {
 public:
  static Result<FolderWatch> open();
  /// Readable when there is something for drain().
  int fd() const { return fd_.get(); }
  /// Watches `folders` too; those that do not exist, or are beyond the user's limit, are passed
  /// over. Result: how many are not watched for another reason than that they do not exist.
  std::size_t add(const std::vector<std::string>& folders);
  /// Takes what there is; true when it was a change that may matter.
  bool drain();

 private:
  explicit FolderWatch(Fd fd) : fd_(std::move(fd)) {}
  Fd fd_;
};

}  // namespace heddle::compat
