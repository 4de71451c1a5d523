// SPDX-License-Identifier: MIT
#pragma once

#include <dirent.h>

#include <cstdint>
#include <functional>
#include <string>

#include "base/result.hpp"

namespace heddle {

/// Without `.` and `..`.
struct DirectoryEntry {
  std::uint64_t ino = 0;
  unsigned char type = DT_UNKNOWN;  ///< DT_REG, DT_DIR, ...
};

/// Calls `visit` for every name below the directory `root` is open on (O_PATH will do), directories
/// before what is in them, with the path from there. The kernel is given a large buffer: it asks
/// FUSE for as much as the caller's holds (fs/fuse/readdir.c since Linux 6.14; a page at a time
/// before).
/// `enter` is asked before a directory below the root is read, when all that lies beside it was
/// visited; without one all are.
Result<void> walk_tree(int root,
                       const std::function<void(const std::string&, const DirectoryEntry&)>& visit,
                       const std::function<bool(const std::string&)>& enter = nullptr);

}  // namespace heddle
