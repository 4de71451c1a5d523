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

}  // namespace heddle
