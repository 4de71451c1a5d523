// SPDX-License-Identifier: MIT
#pragma once

#include <string>
#include <vector>

namespace heddle {

/// A line for the file `path` of the image below `root` (a folder's descriptor): its size, mtime
/// and first page, which every way to unpack or stack an image keeps; device and inode are another
/// in each container. The page holds an ELF file's build id: images whose files all have the
/// epoch's mtime are common.
std::string image_stamp(int root, const std::string& path);
std::string image_stamps(int root, const std::vector<std::string>& paths);

}  // namespace heddle
