// SPDX-License-Identifier: MIT
#pragma once

#include <sys/stat.h>

#include <string>

#include "base/fd.hpp"
#include "base/file_stamp.hpp"

namespace heddle {

/// A regular file open for reading, and what fstat(2) said of it then.
struct OpenedFile {
  Fd fd;
  FileStamp stamp;
  std::uint32_t mode = 0;

  /// By open_regular(), below the directory `root` (-1: this process' own) by open_regular_in().
  /// What is not a regular file is refused with ENOEXEC (EISDIR for a folder), as
  /// FactsSource::facts promises.
  static Result<OpenedFile> open(const std::string& path, int root = -1);
  /// Whether the file is still what it was when it was opened.
  bool unchanged() const;
};

}  // namespace heddle
