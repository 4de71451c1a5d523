// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <map>
#include <optional>

#include "base/file_stamp.hpp"

namespace heddle {

/// Where a file's bytes are stored, by the type of its file system, in ascending order.
enum class Locality : std::uint8_t {
  remote,   ///< on another machine, in a daemon, or of an unknown type
  layered,  ///< in other files, which may be anywhere: overlays, images
  local,    ///< on a disk
  memory,   ///< reading never blocks
};

/// Identifies file systems, and tells whether a file's stamp changes with its content. It does not
/// on images (squashfs, ISO 9660, EROFS, also below an overlay) and on FUSE: the ctime is what the
/// image's maker or the daemon sets, device numbers are reused, and an image rebuilt with pinned
/// times can have another library with the same stamp.
class FileSystems {
 public:
  /// The id of the file system of `fd` (also O_PATH), by its UUID if it has one; nullopt: the
  /// file's stamp cannot be trusted.
  std::optional<std::uint64_t> of(int fd, const FileStamp& stamp);

  /// Whether the kernel generates the content (proc, sysfs and the like): reading may block forever
  /// or consume data of other readers.
  bool is_made_up(int fd, const FileStamp& stamp);

  /// Calls fstatfs(2) once per file system, which may block on a remote one.
  Locality locality(int fd, const FileStamp& stamp);
  bool is_fuse(int fd, const FileStamp& stamp);

 private:
  struct Kind {
    std::uint64_t type = 0;  ///< statfs(2) f_type
    std::uint64_t id = 0;    ///< f_fsid
  };
  const Kind& kind_of(int fd, const FileStamp& stamp);
  std::map<std::uint64_t, Kind> by_device_;
};

/// FileSystems::locality() without the cache.
Locality locality_of(int fd);
/// FileSystems::is_made_up() without the cache; true if fstatfs(2) fails.
bool lies_on_made_up_file_system(int fd);

}  // namespace heddle
