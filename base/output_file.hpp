// SPDX-License-Identifier: MIT
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "base/fd.hpp"

namespace heddle {

/// The descriptor that `path` is a name of: `-` and /dev/stdout, /dev/stderr, /dev/fd/N,
/// /proc/self/fd/N. To be written to as it is: opened by that name a regular file would begin anew
/// at its start, over what others wrote there.
std::optional<int> named_descriptor(std::string_view path);

/// Where a file that is written aside has to be renamed to, so that `path` then shows it: `path`,
/// or the file that it is a symbolic link to. Failure: what stands there is no regular file, and
/// must not be replaced by one (a device, a pipe, a directory), or may not be written.
Result<std::string> replaceable_path(const std::string& path);

/// What `path` leads to, open for writing, when that can only be written to: a device, a pipe
/// (whose reader is waited for, as a shell's `>` does) or a descriptor's name. No descriptor: a
/// regular file, or none yet.
Result<Fd> open_unreplaceable(const std::string& path);

/// Where a user wants a report: a regular file is replaced by the whole of it or stays what it was
/// (AtomicFile); what is none is written to.
class OutputFile {
 public:
  /// Before the work whose report it is: that it cannot be written is said here.
  static Result<OutputFile> prepare(std::string path);
  /// Writes the report; once.
  Result<void> write(std::string_view text);

 private:
  OutputFile(std::string path, Fd fd) : path_(std::move(path)), fd_(std::move(fd)) {}
  std::string path_;
  Fd fd_;  ///< none: a regular file
};

/// prepare() and write().
Result<void> write_output(const std::string& path, std::string_view text);

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
