// SPDX-License-Identifier: MIT
#pragma once

#include <sys/stat.h>

#include <optional>
#include <string>
#include <vector>

#include "fuseovl/files/object_files.hpp"
#include "fuseovl/overlay/tree.hpp"

namespace heddle {

/// Files that a mount showed before its map was exchanged, and that programs may still have open or
/// mapped: no name leads to them any more, their numbers and contents do. Kept until the kernel
/// knows them no more.
class RetiredFiles {
 public:
  struct File {
    InodeNumber ino = 0;
    std::string path;  ///< where it was opened; of a file that the mount made, its name there
    Origin origin;
    std::uint32_t refusal = 0;  ///< ObjectFiles::refusal()
    std::int64_t since = 0;     ///< when it was retired, monotonic_ms()
  };

  RetiredFiles() = default;
  explicit RetiredFiles(std::vector<File> files);

  /// Where `files()` has it; nullopt: it is none of them.
  std::optional<ObjectId> find(InodeNumber ino) const;
  const ObjectFiles& files() const { return files_; }
  ObjectFiles& files() { return files_; }
  InodeNumber inode(ObjectId id) const { return inodes_[id]; }
  std::int64_t since(ObjectId id) const { return since_[id]; }
  /// How many there were at first; those given up count.
  std::size_t size() const { return inodes_.size(); }
  /// How many are kept.
  std::size_t kept() const;
  bool is_kept(ObjectId id) const { return files_.origin(id).usable; }

 private:
  std::vector<InodeNumber> inodes_;  ///< in ascending order
  std::vector<std::int64_t> since_;
  ObjectFiles files_;
};

/// What the mount itself has open, whose status is `status`, as a file that all may read.
Origin origin_of(Fd file, const struct stat& status);
/// The same of a file that is in no folder and holds `bytes`; `name` is for messages.
Result<Origin> make_origin(std::string_view bytes, const std::string& name);

}  // namespace heddle
