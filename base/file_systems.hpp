// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <map>
#include <optional>

#include "base/file_stamp.hpp"

namespace heddle {

/// Who keeps the bytes of a file, by the type of its file system; in order.
enum class Locality : std::uint8_t {
  remote,   ///< another machine, a daemon, or a type that is not known here
  layered,  ///< this kernel, out of files that may be anywhere: overlays, images
  local,    ///< a disk's file system
  memory,   ///< reading never waits
};

/// Tells file systems apart, and on which of them a stamp changes whenever the content does. Not so
/// on images (squashfs, ISO 9660, EROFS, also below an overlay) and on FUSE: there the ctime is
/// what the image's maker or the daemon says, device numbers are used again, and a rebuilt image
/// with pinned times can show another library under the very same stamp.
class FileSystems {
 public:
  /// A number for the file system of the open file `fd` (O_PATH will do) (its UUID's where there is
  /// one); nullopt: the stamp of the file is not to be trusted.
  std::optional<std::uint64_t> of(int fd, const FileStamp& stamp);

  /// Whether the kernel makes up what is read from such a file (proc, sysfs and the like): to read
  /// it may wait for ever, or take something from its other readers.
  bool is_made_up(int fd, const FileStamp& stamp);

  /// Asks the file system once, which may block where it is remote.
  Locality locality(int fd, const FileStamp& stamp);

 private:
  struct Kind {
    std::uint64_t type = 0;  ///< statfs(2) f_type
    std::uint64_t id = 0;    ///< f_fsid
  };
  const Kind& kind_of(int fd, const FileStamp& stamp);
  std::map<std::uint64_t, Kind> by_device_;
};

/// FileSystems::locality() of a file that is asked about once.
Locality locality_of(int fd);
/// FileSystems::is_made_up() of a file that is asked about once; true too where it cannot be told.
bool lies_on_made_up_file_system(int fd);

}  // namespace heddle
