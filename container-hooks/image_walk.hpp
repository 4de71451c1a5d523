// SPDX-License-Identifier: MIT
#pragma once

#include <sys/stat.h>

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/fd.hpp"

namespace heddle {

/// What stands at a path of an image.
struct ImagePlace {
  bool is_there = false;
  struct stat status {};
  std::string where;  ///< its path below the image's root without links
};

/// Looks paths up below an image's root, best in sorted order: the folders that lead to the last
/// one stay open, so that its neighbours cost one system call each. To open each path by itself and
/// to ask /proc where that led takes ten times as long.
class ImageWalk {
 public:
  /// `root`: the image's root folder (O_PATH), which must outlive this. `top`: its path.
  ImageWalk(const Fd& root, std::string top);

  /// nullopt: only who opens it knows, for it is a link to another folder, holds `.` or `..`, or
  /// may not be looked at.
  std::optional<ImagePlace> find(std::string_view path);

 private:
  struct Folder {
    std::string path;   ///< as it was asked for, without a slash at the end
    std::string where;  ///< as ImagePlace has it; the root's is empty
    Fd open;
  };
  enum class Way : std::uint8_t { there, nowhere, unknown };
  Way walk_to(std::string_view folder);
  Way step(std::string_view name);

  const Fd& root_;
  std::string top_;
  std::vector<Folder> way_;  ///< from below the root to the last path's folder
};

/// The path that `fd` is open on as this process would name it below `top`.
std::string place_below(const std::string& top, int fd);

}  // namespace heddle
