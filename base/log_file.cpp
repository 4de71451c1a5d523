// SPDX-License-Identifier: MIT
#include "base/log_file.hpp"

#include <fcntl.h>
#include <sys/stat.h>

namespace heddle {

Result<Fd> open_log(const std::string& path) {
  constexpr int kAppend = O_WRONLY | O_APPEND | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY;
  struct stat status {};
  // To open a device can already do something (a tape rewinds), so the name is asked first; fstat
  // has the last word, where the name was exchanged meanwhile.
  if (::lstat(path.c_str(), &status) != 0 || S_ISREG(status.st_mode)) {
    auto file = open_file(path, kAppend | O_CREAT, 0644);
    if (!file) return file;
    if (::fstat(file->get(), &status) == 0 && S_ISREG(status.st_mode)) return file;
  }
  return fail(path, "cannot use as log", "it is no regular file", "name a file of its own");
}

}  // namespace heddle
