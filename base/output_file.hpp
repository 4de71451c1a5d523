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

/// A file written in its directory without a name, or where there are no such files under a
/// temporary one, and published by a commit. Readers see the old file or the whole new one. Without
/// a commit the destructor removes it; so does the end of the program if it has no name.
/// The directory stays the one that was opened first, also when another is put into its place.
class AtomicFile {
 public:
  /// Creates the file beside `path`, `mode` less the umask, and less what the user's own file there
  /// does not allow. A symbolic link stays, and
  /// its target is replaced; root follows only root's (open_directory_to_write()). EINVAL: `path`
  /// is a device, a pipe, a descriptor's name, or in /dev or /proc. EISDIR: it is a directory.
  static Result<AtomicFile> create(const std::string& path, mode_t mode = 0666);
  AtomicFile(AtomicFile&&) noexcept;
  AtomicFile& operator=(AtomicFile&&) = delete;
  ~AtomicFile();

  int fd() const noexcept { return fd_.get(); }
  Result<void> write(std::string_view data) { return write_all(fd_.get(), data, path_); }
  /// Publishes the file: fsync, rename, fsync of the directory. On failure the old file, if any,
  /// stays.
  Result<void> commit();
  /// Likewise under `name` in the same directory. false: there is such a file.
  Result<bool> commit_new(const std::string& name);
  /// Publishes the file without waiting for the disk. Result: its descriptor, to write on.
  Result<Fd> commit_open();

 private:
  AtomicFile(std::string path, std::string name, Fd directory)
      : path_(std::move(path)), name_(std::move(name)), directory_(std::move(directory)) {}
  Result<Fd> open_aside(mode_t mode);
  std::string aside_name() const;
  bool link(const std::string& name) const;
  /// Gives the file a temporary name if it has none.
  Result<void> name_it();
  /// Likewise where it cannot be linked, by a copy.
  Result<void> copy_aside();
  void sync_directory() const;
  std::string path_;  ///< for messages
  std::string name_;  ///< in the directory
  std::string temp_;  ///< likewise; empty: it has no name yet
  Fd directory_;
  Fd fd_;
};

/// Opens the regular file `path` to write it anew in its place, where its directory takes no new
/// file. Links: as AtomicFile::create().
Result<Fd> open_in_place(const std::string& path);

}  // namespace heddle
