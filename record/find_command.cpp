// SPDX-License-Identifier: MIT
#include "record/find_command.hpp"

#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>

namespace heddle {

Result<std::string> find_command(const std::string& name) {
  if (name.find('/') != std::string::npos) return name;
  const char* variable = std::getenv("PATH");
  const std::string path = variable ? variable : "/bin:/usr/bin";
  int error = ENOENT;
  for (std::size_t begin = 0; begin <= path.size();) {
    const auto end = std::min(path.find(':', begin), path.size());
    const std::string folder = path.substr(begin, end - begin);
    const std::string candidate = (folder.empty() ? "." : folder) + "/" + name;
    struct stat st {};
    if (::stat(candidate.c_str(), &st) == 0 && S_ISREG(st.st_mode)) {
      if (::access(candidate.c_str(), X_OK) == 0) return candidate;
      error = EACCES;
    }
    begin = end + 1;
  }
  return fail_errno(name, "cannot run", error);
}

}  // namespace heddle
