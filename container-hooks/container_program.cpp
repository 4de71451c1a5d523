// SPDX-License-Identifier: MIT
#include "container-hooks/container_program.hpp"

#include <fcntl.h>
#include <sys/stat.h>

#include "container-hooks/mount_calls.hpp"

namespace heddle {
namespace {

bool is_program(int root, const std::string& path) {
  const auto file = find_in_root(root, path, 0);
  struct stat status {};
  return file && ::fstat(file->get(), &status) == 0 && S_ISREG(status.st_mode) &&
         (status.st_mode & 0111) != 0;
}

}  // namespace

std::optional<std::string> container_program(const ContainerConfig& config) {
  if (config.args.empty() || config.args[0].empty()) return std::nullopt;
  const std::string& word = config.args[0];
  if (word.find('\0') != std::string::npos) return std::nullopt;
  const auto root = open_file(config.rootfs, O_PATH | O_DIRECTORY);
  if (!root) return std::nullopt;
  const auto from_cwd = [&](const std::string& path) {
    return path.starts_with('/') ? path : config.cwd + "/" + path;
  };
  if (word.find('/') != std::string::npos) {
    const auto path = from_cwd(word);
    return is_program(root->get(), path) ? std::optional(path) : std::nullopt;
  }
  std::string search_path;
  for (const auto& entry : config.environment)
    if (entry.starts_with("PATH=")) search_path = entry.substr(5);
  for (std::size_t at = 0; at <= search_path.size();) {
    const auto end = std::min(search_path.find(':', at), search_path.size());
    const auto path = from_cwd(search_path.substr(at, end - at)) + "/" + word;
    if (end > at && is_program(root->get(), path)) return path;
    at = end + 1;
  }
  return std::nullopt;
}

}  // namespace heddle
