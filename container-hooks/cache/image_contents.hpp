// SPDX-License-Identifier: MIT
#pragma once

#include <string>
#include <unordered_map>
#include <vector>

#include "base/fd.hpp"
#include "base/file_stamp.hpp"
#include "base/file_systems.hpp"

namespace heddle::hook {

/// The contents of an image's paths that a decision depends on. Times do not tell them apart, since
/// reproducible builds give all files one time, and device and inode differ in each container.
/// Hashing an MPI takes longer than the rest of a container's start, so hashes are stored by the
/// file's stamp, with the ctime: when this node unpacked the file, which no program can set.
class ImageContents {
 public:
  /// `root`: the image's root directory, which must outlive this.
  explicit ImageContents(const Fd& root);

  /// Loads the output of an earlier remembered().
  void recall(const std::string& text);
  /// The hashes as text for recall(); empty: nothing new.
  std::string remembered() const;

  /// A line for each path: its content's hash, or that it is absent or a directory; and where
  /// symbolic links lead. With a trailing slash: the hash of the names in that directory. Each path
  /// is read once: a decision is stored with the contents from before it was made.
  std::string of(const std::vector<std::string>& paths);

  /// The file's stamp, which identifies this copy of an image until the file is changed. Empty: no
  /// stamp can be trusted.
  std::string copy_id(const std::string& path);

 private:
  std::string look_at(const std::string& path);
  std::string stamp_of(int fd, const struct stat& status);
  std::string hash_of(const Fd& file, const struct stat& status);

  const Fd& root_;
  std::string top_;  ///< its path
  FileSystems file_systems_;
  std::unordered_map<std::string, std::string> known_;  ///< stamp -> hash
  std::unordered_map<std::string, std::string> lines_;  ///< path -> its line of of()
  bool has_new_hashes_ = false;                         ///< `known_` has new hashes
};

}  // namespace heddle::hook
