// SPDX-License-Identifier: MIT
#include "container-hooks/image_stamps.hpp"

#include <fcntl.h>
#include <sys/stat.h>

#include "base/content_hash.hpp"
#include "base/file_stamp.hpp"
#include "container-hooks/mount_calls.hpp"

namespace heddle {

std::string image_stamp(int root, const std::string& path) {
  struct stat status {};
  const auto place = open_in_root(root, path, 0);
  if (!place || ::fstat(place->get(), &status) != 0 || !S_ISREG(status.st_mode))
    return path + "\t-\n";
  const auto file = open_file("/proc/self/fd/" + std::to_string(place->get()), O_RDONLY);
  char page[4096];
  const ssize_t n = file ? ::pread(file->get(), page, sizeof(page), 0) : -1;
  const auto head = n < 0 ? "-" : hash_bytes({page, static_cast<std::size_t>(n)}).hex();
  const auto stamp = file_stamp(status);
  return path + "\t" + std::to_string(stamp.size) + "\t" + std::to_string(stamp.mtime_ns) + "\t" +
         head + "\n";
}

std::string image_stamps(int root, const std::vector<std::string>& paths) {
  std::string out;
  for (const auto& path : paths) out += image_stamp(root, path);
  return out;
}

}  // namespace heddle
