// SPDX-License-Identifier: MIT
#pragma once

#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/fd.hpp"
#include "base/file_stamp.hpp"
#include "base/file_systems.hpp"
#include "container-hooks/image_walk.hpp"

namespace heddle {

/// What an image holds at the paths that a decision hangs on: content, not times, since images that
/// are built reproducibly give all their files one time, and device and inode are another in each
/// container. To hash an MPI each time would take longer than all else at a container's start, so
/// what was hashed is remembered by the file's stamp, ctime included, where the kernel keeps that:
/// it is when this node unpacked the file, which nothing sets back.
class ImageContents {
 public:
  /// `root`: the image's root folder, which must outlive this.
  explicit ImageContents(const Fd& root);

  /// Takes what remembered() gave before; of anything else, nothing.
  void recall(const std::string& text);
  /// What recall() is to be given next time; empty: no more than this time.
  std::string remembered() const;

  /// A line for `path`: its content, that it is not there, that it is a folder; and its place,
  /// where links lead there. Of a path that ends in a slash it is the names in that folder. Always
  /// what it was when first asked: with a decision goes what was there before it was made.
  std::string of(const std::string& path);
  std::string of(const std::vector<std::string>& paths);

  /// Tells this copy of an image from others, as long as it is not touched: the file's stamp.
  /// Empty: there is none that could be trusted.
  std::string copy_id(const std::string& path);

 private:
  std::string look_at(const std::string& path);
  std::optional<std::string> glance_at(const std::string& path);
  const std::string* known(const std::string& stamp) const;
  std::string stamp_of(int fd, const struct stat& status);
  std::string hash_of(const Fd& file, const struct stat& status);
  std::string names_of(const Fd& folder, const struct stat& status);

  const Fd& root_;
  std::string top_;  ///< where it is
  ImageWalk walk_;
  FileSystems file_systems_;
  std::unordered_map<std::string, std::string> known_;  ///< stamp -> hash
  std::unordered_map<std::string, std::string> lines_;  ///< path -> what of() says
  bool news_ = false;
};

}  // namespace heddle
