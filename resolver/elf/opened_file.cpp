// SPDX-License-Identifier: MIT
#include "resolver/elf/opened_file.hpp"

#include <fcntl.h>

namespace heddle {

Result<OpenedFile> OpenedFile::open(const std::string& path) {
  // O_NONBLOCK: a FIFO without a writer would hold us; O_NOCTTY: a terminal would become ours.
  auto fd = open_file(path, O_RDONLY | O_NONBLOCK | O_NOCTTY);
  if (!fd) return fail(std::move(fd.error()));
  struct stat st {};
  if (::fstat(fd->get(), &st) != 0) return fail_errno(path, "cannot read");
  if (S_ISDIR(st.st_mode)) return fail_errno(path, "cannot read", EISDIR);
  if (!S_ISREG(st.st_mode))
    return fail(Error::with_code(ENOEXEC, path, "not an ELF file", "not a regular file"));
  return OpenedFile{std::move(*fd), file_stamp(st), st.st_mode};
}

bool OpenedFile::unchanged() const {
  struct stat st {};
  return ::fstat(fd.get(), &st) == 0 && file_stamp(st) == stamp;
}

}  // namespace heddle
