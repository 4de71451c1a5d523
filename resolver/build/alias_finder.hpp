// SPDX-License-Identifier: MIT
#pragma once

#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/file_stamp.hpp"

namespace heddle {

/// The other names of a file: symbolic links beside it, and the second spelling of its folder on
/// systems where /lib is a link to /usr/lib. A program that opens the same file by another name
/// must get the same inode, or ld.so loads it twice. Lists each folder once.
class AliasFinder {
 public:
  AliasFinder();
  /// Names (no folder) of symbolic links in `folder` that lead to the file `id`; sorted.
  const std::vector<std::string>& links(const std::string& folder, FileId id);
  /// Every absolute spelling of `path` itself: as given, symlink-free, with /usr/lib for /lib and
  /// the other way round where that is the same folder. Sorted, unique, `path` (if absolute)
  /// included.
  std::vector<std::string> spellings(const std::string& path) const;

 private:
  using Listing = std::unordered_map<FileId, std::vector<std::string>>;
  std::unordered_map<std::string, Listing> folders_;
  std::vector<std::pair<std::string, std::string>> merged_;  ///< ("/lib/", "/usr/lib/")
};

}  // namespace heddle
