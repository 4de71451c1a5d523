// SPDX-License-Identifier: MIT
#pragma once

#include <sys/stat.h>

#include <chrono>
#include <string>

#include "base/fd.hpp"
#include "resolver/map/map_reader.hpp"

namespace heddle {

/// A map's file, found and opened by whoever must not wait for ever for where it lies. What is not
/// on this node's own disks for certain (local_files.hpp) is read by a process that can be left
/// behind (bounded_work.hpp), once and whole: a reader of a mapped file cannot be stopped.
class MapFile {
 public:
  /// Of the map at `path`. ETIMEDOUT: its file system has not answered for `limit` (0: it is
  /// waited for). Else as open(2).
  static Result<MapFile> find(const std::string& path, std::chrono::milliseconds limit);
  /// Of the map that somebody has opened, who may change it later: its bytes are copied, and only
  /// the copy is used.
  static Result<MapFile> of(int open, std::chrono::milliseconds limit);

  /// Its content, as MapReader::open().
  Result<MapReader> read() const { return MapReader::open(readable(), path_); }
  /// Of the bytes that read() reads.
  Result<ContentHash> hash() const;
  const struct stat& status() const { return status_; }
  const std::string& path() const { return path_; }
  /// The file itself, or the copy of what others have open. Asking it anything may block.
  Fd take_file() { return std::move(file_ ? file_ : copy_); }

 private:
  MapFile(std::string path, Fd file) : path_(std::move(path)), file_(std::move(file)) {}
  int readable() const { return copy_ ? copy_.get() : file_.get(); }
  Result<void> copy_within(std::chrono::milliseconds limit);

  std::string path_;
  Fd file_;
  struct stat status_ {};
  Fd copy_;  ///< its bytes in memory, where reading it may block
};

}  // namespace heddle
