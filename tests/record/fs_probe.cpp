// SPDX-License-Identifier: MIT
// Does to the folder it is given what applications do to files, and prints each result. Run
// natively and on the loopback its output must be the same, byte for byte.
#include "tests/record/fs_probe.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>

namespace probe {

void say(const char* what, long result) {
  std::printf("%s: %ld %s\n", what, result, result < 0 ? ::strerrorname_np(errno) : "");
}

std::string content(const char* path) {
  const int fd = ::open(path, O_RDONLY);
  if (fd < 0) return std::string("!") + ::strerrorname_np(errno);
  std::string out;
  char buffer[4096];
  for (ssize_t n; (n = ::read(fd, buffer, sizeof(buffer))) > 0;)
    out.append(buffer, static_cast<std::size_t>(n));
  ::close(fd);
  return out;
}

void put(const char* path, const char* text) {
  const int fd = ::open(path, O_WRONLY | O_CREAT | O_TRUNC, 0644);
  if (fd < 0 || ::write(fd, text, std::strlen(text)) < 0) say("put", -1);
  ::close(fd);
}

void show(const char* what, const std::string& text) {
  std::printf("%s: [%s]\n", what, text.c_str());
}

void show_stat(const char* what, const struct stat& st) {
  std::printf("%s: mode %o nlink %lu size %ld uid %u gid %u\n", what, st.st_mode, st.st_nlink,
              st.st_size, st.st_uid, st.st_gid);
}

}  // namespace probe

int main(int argc, char** argv) {
  if (argc < 2 || ::chdir(argv[1]) != 0) return 2;
  ::umask(022);
  probe::names();
  probe::open_files();
  probe::appending();
  probe::nameless();
  probe::sizes();
  probe::mapping();
  probe::locking();
  probe::attributes();
  probe::special();
  probe::folders();
  return 0;
}
