// SPDX-License-Identifier: MIT
#include "resolver/build/plugin_folder.hpp"

#include <algorithm>
#include <filesystem>

namespace heddle {

namespace fs = std::filesystem;

Result<std::vector<std::pair<std::string, std::string>>> list_plugin_folder(
    const std::string& folder) {
  std::error_code error;
  fs::path root = fs::absolute(folder).lexically_normal();
  if (!root.has_filename()) root = root.parent_path();  // "dir/"
  if (!root.has_filename()) return fail(folder, "not a plugin folder", "it has no name");
  fs::recursive_directory_iterator walk(root, error);
  if (error) return fail_errno(folder, "cannot list", error.value());
  std::vector<std::pair<std::string, std::string>> out;
  for (; walk != fs::recursive_directory_iterator(); walk.increment(error)) {
    if (error) return fail_errno(folder, "cannot list", error.value());
    if (!walk->is_regular_file(error)) continue;  // follows links; a dangling one is no file
    const auto below = walk->path().lexically_relative(root.parent_path());
    out.emplace_back(walk->path().string(), below.string());
  }
  std::sort(out.begin(), out.end());
  return out;
}

}  // namespace heddle
