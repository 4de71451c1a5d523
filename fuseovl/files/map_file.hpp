// SPDX-License-Identifier: MIT
#pragma once

#include <sys/stat.h>

#include <chrono>
#include <string>

#include "base/fd.hpp"
#include "resolver/map/map_reader.hpp"

namespace heddle {

/// The bytes of a map's file, copied to memory once by a child that is abandoned where the file
/// system does not answer (file_work.hpp): a reader of a mapped file could not be stopped, and
/// others may change theirs.
struct MapFile {
  std::string path;
  Fd content;
  struct stat status {};  ///< the file's, when it was read

  /// Of the map at `path`. Cause::silent: its file system has not answered for `limit` (0: it is
  /// waited for). Else as open(2); ENOEXEC: it is no regular file.
  static Result<MapFile> find(std::string path, std::chrono::milliseconds limit);
  /// Of the map that somebody has opened.
  static Result<MapFile> of(int open, std::chrono::milliseconds limit);

  /// Its content, as MapReader::open().
  Result<MapReader> read() const { return MapReader::open(content.get(), path); }
  Result<MapContent> read_all() const;
  Result<ContentHash> hash() const;
  Result<std::string> bytes() const;
};

}  // namespace heddle
