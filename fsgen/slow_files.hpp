// SPDX-License-Identifier: MIT
#pragma once

// Where a mount pays: on file systems whose look-ups are slow. Elsewhere APP is guided to the
// original files and needs no mount and no daemon.

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace heddle {

/// How a directory's file system was judged.
struct FileSystemSpeed {
  bool slow = false;
  bool remote_type = false;  ///< slow, and `fs-mount --serve remote` serves its files
  std::string why;           ///< "nfs", "--slow /opt", "0.4 us a look-up"
};

/// The verdict of a file system's type: `magic` of statfs(2) and the type in mountinfo, with FUSE's
/// subtype. nullopt: its look-ups are measured.
std::optional<FileSystemSpeed> speed_of_type(std::uint64_t magic, const std::string& type);
/// The last directory of an overlay's mount options; empty: they name none.
std::string lowest_layer(const std::string& options);

class SlowFiles {
 public:
  /// Paths below a directory of `slow` or `fast` are judged by it, the longest counting; else by
  /// their real path.
  SlowFiles(std::vector<std::string> slow, std::vector<std::string> fast);

  /// Of the directory `path` (absolute). By --slow and --fast, else by the type of its file system,
  /// that of an overlay being its lowest layer's, else by a look-up of a missing name. A file
  /// system is asked once.
  const FileSystemSpeed& speed_of(const std::string& path);
  /// As speed_of(), of a path without symbolic links, by that of its mount point: sends requests
  /// once for each mount.
  const FileSystemSpeed& speed_of_real(const std::string& path);

 private:
  FileSystemSpeed judge(const std::string& path, std::uint64_t device) const;
  const FileSystemSpeed* given(const std::string& path) const;
  std::map<std::string, FileSystemSpeed> by_given_;
  std::map<std::uint64_t, FileSystemSpeed> by_device_;
  std::map<std::string, const FileSystemSpeed*> by_directory_;
  std::optional<std::vector<std::string>> mount_points_;
};

}  // namespace heddle
