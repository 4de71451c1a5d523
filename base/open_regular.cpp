// SPDX-License-Identifier: MIT
#include "base/open_regular.hpp"

#include <fcntl.h>
#include <sys/stat.h>

#include "base/file_systems.hpp"
#include "base/open_in_root.hpp"

namespace heddle {

Result<Fd> open_regular_at(int handle, const std::string& name) {
  struct stat status {};
  if (::fstat(handle, &status) != 0) return fail_errno(name, "cannot stat");
  if (S_ISDIR(status.st_mode)) return fail_errno(name, "cannot read", EISDIR);
  if (!S_ISREG(status.st_mode))
    return fail(Error::with_code(ENOEXEC, name, "cannot read", "not a regular file"));
  auto file = open_file("/proc/self/fd/" + std::to_string(handle), O_RDONLY | O_NONBLOCK);
  if (!file) return fail_errno(name, "cannot open", file.error().code());
  return file;
}

Result<Fd> open_regular(const std::string& path) {
  const auto handle = open_file(path, O_PATH);
  if (!handle) return fail(handle.error());
  return open_regular_at(handle->get(), path);
}

Result<Fd> open_regular_in(int root, const std::string& path) {
  const auto handle = open_in_root(root, path, O_PATH, 0);
  if (!handle) return fail(handle.error());
  if (lies_on_made_up_file_system(handle->get()))
    return fail(Error::with_code(ENOEXEC, path, "cannot read", "not on a file system for files"));
  return open_regular_at(handle->get(), path);
}

}  // namespace heddle
