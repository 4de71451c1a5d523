// SPDX-License-Identifier: MIT
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "base/fd.hpp"

namespace heddle {

/// The descriptor that `path` names: `-`, /dev/stdout, /dev/stderr, /dev/fd/N or /proc/self/fd/N.
/// Opening such a name would write from the start of a regular file, over others' output.
std::optional<int> named_descriptor(std::string_view path);

/// The path to rename a new file to in order to replace `path`: itself, or a symbolic link's
/// target. Failure: it is not a regular file (a device, a pipe, a directory), or may not be
/// written.
Result<std::string> replaceable_path(const std::string& path);

/// Opens `path` for writing if it cannot be replaced: a device, a pipe (waits for its reader, as a
/// shell's `>` does) or a descriptor's name. No descriptor: a regular file, or none yet.
Result<Fd> open_unreplaceable(const std::string& path);

/// The destination of a report: a regular file is replaced atomically (AtomicFile), anything else
/// is written to.
class OutputFile {
 public:
  /// Called before the work, to fail early if `path` cannot be written.
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

/// A file written under a temporary name in its directory and published by commit(): fsync, rename,
/// fsync of the directory. Readers see the old file or the whole new one. Without commit() the
/// destructor removes the temporary file. The directory stays the one that was opened first, also
/// when another is put into its place.
class AtomicFile {
 public:
  /// Creates the temporary file beside `path`, mode 0666 less the umask. A symbolic link stays, and
  /// its target is replaced. EINVAL: `path` is a device, a pipe, a descriptor's name, or in /dev or
  /// /proc. EISDIR: it is a directory.
  static Result<AtomicFile> create(std::string path);
  /// To replace the open file `old`: creates the temporary file in its directory, mode 0600.
  /// ESTALE: that directory no longer has it under its name. It follows `old` where another process
  /// moves it.
  static Result<AtomicFile> create_beside(const Fd& old);
  AtomicFile(AtomicFile&&) noexcept;
  AtomicFile& operator=(AtomicFile&&) = delete;
  ~AtomicFile();

  int fd() const noexcept { return fd_.get(); }
  /// The file's path until commit(), for libraries that write to a path.
  const std::string& temp_path() const noexcept { return temp_path_; }
  Result<void> write(std::string_view data) { return write_all(fd_.get(), data, path_); }
  /// Publishes the file. On failure the old file, if any, stays.
  Result<void> commit();

 private:
  AtomicFile(std::string path, Fd directory)
      : path_(std::move(path)), directory_(std::move(directory)) {}
  Result<void> make(mode_t mode);
  /// The last component of `path`.
  static const char* name_of(const std::string& path) { return path.c_str() + path.rfind('/') + 1; }
  std::string path_;
  std::string temp_path_;  ///< empty: none
  Fd directory_;
  Fd fd_;
};

}  // namespace heddle
