// SPDX-License-Identifier: MIT
#pragma once

#include <string>

#include "base/fd.hpp"

namespace heddle {

/// A file written aside in its own directory and put in place by commit(): fsync, rename, fsync of
/// the directory. Readers see the old file or the whole new one. Without commit() the destructor
/// removes the temporary file and nothing has happened.
class AtomicFile {
 public:
  /// Makes the temporary file beside `path`, mode 0666 less the umask. A symbolic link stays, and
  /// the file it leads to is replaced. EINVAL: `path` is no file to replace, but a device, a pipe,
  /// a descriptor's name, or in /dev or /proc (what may lead there: base/output_file.hpp). EISDIR:
  /// it is a directory.
  static Result<AtomicFile> create(std::string path);
  AtomicFile(AtomicFile&&) noexcept;
  AtomicFile& operator=(AtomicFile&&) = delete;
  ~AtomicFile();

  int fd() const noexcept { return fd_.get(); }
  /// Where the bytes are until commit(): a library that wants a path may write there.
  const std::string& temp_path() const noexcept { return temp_path_; }
  Result<void> write(std::string_view data) { return write_all(fd_.get(), data, path_); }
  /// Publishes. On failure nothing is published and the old file, if any, stands.
  Result<void> commit();

 private:
  AtomicFile(std::string path, std::string temp_path, Fd fd);
  std::string path_;
  std::string temp_path_;
  Fd fd_;
};

}  // namespace heddle
