// SPDX-License-Identifier: MIT
#pragma once

#include <sys/stat.h>

#include <chrono>
#include <string>

#include "base/fd.hpp"
#include "resolver/map/map_reader.hpp"

namespace heddle {

/// A copy in memory of a map's or bundle's file, which others may change. A child reads it and is
/// abandoned where the file system does not answer (file_work.hpp), but for the path of a file on a
/// local root file system that only root and this user may write to.
struct MapFile {
  std::string path;
  Fd content;
  struct stat status {};  ///< the file's, when it was read
  Fd bundle;              ///< the file itself, of a bundle: its content is not copied

  /// Of the map at `path`. Cause::silent: its file system has not answered for `limit` (0: no
  /// limit); ENOEXEC: it is no regular file; else errors of open(2).
  static Result<MapFile> find(std::string path, std::chrono::milliseconds limit);
  /// Of the open file.
  static Result<MapFile> of(int open, std::chrono::milliseconds limit);

  Result<MapReader> read() const { return MapReader::open(content.get(), path); }
  Result<MapContent> read_all() const;
  Result<ContentHash> hash() const;
};

}  // namespace heddle
