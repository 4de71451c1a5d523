// SPDX-License-Identifier: MIT
#include "ship/registry/authorities.hpp"

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <vector>

#include "base/fd.hpp"

namespace heddle::registry {

std::string find_authorities(const std::string& host) {
  namespace fs = std::filesystem;
  std::vector<std::string> roots = {"/etc/containers", "/etc/docker"};
  if (const char* home = std::getenv("HOME"); home != nullptr && *home == '/')
    roots.insert(roots.begin(), std::string(home) + "/.config/containers");
  for (const auto& root : roots) {
    std::vector<std::string> files;
    std::error_code error;
    for (fs::directory_iterator at(root + "/certs.d/" + host, error), end; !error && at != end;
         at.increment(error))
      if (at->path().extension() == ".crt") files.push_back(at->path().string());
    std::sort(files.begin(), files.end());
    std::string pem;
    for (const auto& file : files) pem += read_file(file, 1 << 20).value_or("") + "\n";
    if (!files.empty()) return pem;
  }
  return "";
}

}  // namespace heddle::registry
