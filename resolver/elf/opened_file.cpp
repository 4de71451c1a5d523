// SPDX-License-Identifier: MIT
#include "resolver/elf/opened_file.hpp"

#include "base/open_regular.hpp"

namespace heddle {

Result<OpenedFile> OpenedFile::open(const std::string& path, int root) {
  auto fd = root < 0 ? open_regular(path) : open_regular_in(root, path);
  if (!fd && fd.error().code() == ENOEXEC)
    return fail(Error::with_code(ENOEXEC, path, "not an ELF file", "not a regular file"));
  if (!fd) return fail(std::move(fd.error()));
  struct stat st {};
  if (::fstat(fd->get(), &st) != 0) return fail_errno(path, "cannot read");
  return OpenedFile{std::move(*fd), file_stamp(st), st.st_mode};
}

bool OpenedFile::unchanged() const {
  struct stat st {};
  return ::fstat(fd.get(), &st) == 0 && file_stamp(st) == stamp;
}

}  // namespace heddle
