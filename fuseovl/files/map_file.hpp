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
class MapFile {
 public:
  /// Of the map at `path`. Cause::silent: its file system has not answered for `limit` (0: it is
  /// waited for). Else as open(2).
  static Result<MapFile> find(const std::string& path, std::chrono::milliseconds limit);
  /// Of the map that somebody has opened.
  static Result<MapFile> of(int open, std::chrono::milliseconds limit);

  /// Its content, as MapReader::open().
  Result<MapReader> read() const { return MapReader::open(bytes_.get(), path_); }
  Result<ContentHash> hash() const;
  /// The file's, when it was read.
  const struct stat& status() const { return status_; }
  const std::string& path() const { return path_; }
  Result<std::string> bytes() const;

 private:
  MapFile(std::string path, Fd bytes, const struct stat& status)
      : path_(std::move(path)), bytes_(std::move(bytes)), status_(status) {}
  static Result<MapFile> read_within(std::string path, int open, std::chrono::milliseconds limit);

  std::string path_;
  Fd bytes_;
  struct stat status_ {};
};

}  // namespace heddle
