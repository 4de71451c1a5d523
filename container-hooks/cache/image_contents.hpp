// SPDX-License-Identifier: MIT
#pragma once

#include <string>
#include <unordered_map>
#include <vector>

#include "base/fd.hpp"
#include "base/file_stamp.hpp"
#include "base/file_systems.hpp"

namespace heddle::hook {

/// What an image holds at the paths that a decision depends on: content, not times, since images
/// that are built reproducibly give all their files one time, and device and inode differ in each
/// container. To hash an MPI each time would take longer than all else at a container's start, so
/// hashes are remembered by the file's stamp. That includes the ctime, where the kernel keeps it:
/// the time at which this node unpacked the file, which nothing sets back.
class ImageContents {
 public:
  /// `root`: the image's root directory, which must outlive this.
  explicit ImageContents(const Fd& root);

  /// Takes what remembered() gave before.
  void recall(const std::string& text);
  /// For recall() next time; empty: nothing new.
  std::string remembered() const;

  /// A line for each path: its content's hash, that it is absent or a directory; and where symbolic
  /// links lead. Of a path that ends in a slash it is the names in that directory. The answer stays
  /// what it was when first asked: a decision is kept with what was there before it was made.
  std::string of(const std::vector<std::string>& paths);

  /// Tells this copy of an image from others, as long as it is not touched: the file's stamp.
  /// Empty: there is none that could be trusted.
  std::string copy_id(const std::string& path);

 private:
  std::string look_at(const std::string& path);
  std::string stamp_of(int fd, const struct stat& status);
  std::string hash_of(const Fd& file, const struct stat& status);

  const Fd& root_;
  std::string top_;  ///< its path
  FileSystems file_systems_;
  std::unordered_map<std::string, std::string> known_;  ///< stamp -> hash
  std::unordered_map<std::string, std::string> lines_;  ///< path -> what of() says
  bool news_ = false;
};

}  // namespace heddle::hook
