// SPDX-License-Identifier: MIT
#include "base/mapped_file.hpp"

#include <sys/mman.h>
#include <sys/stat.h>

#include <utility>

namespace heddle {

Result<MappedFile> MappedFile::map(int fd, const std::string& name) {
  struct stat st {};
  if (::fstat(fd, &st) != 0) return fail_errno(name, "cannot stat");
  if (!S_ISREG(st.st_mode)) return fail(name, "cannot map", "not a regular file");
  const auto size = static_cast<std::size_t>(st.st_size);
  if (size == 0) return MappedFile(nullptr, 0);
  void* data = ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, fd, 0);
  if (data == MAP_FAILED) return fail_errno(name, "cannot map");
  return MappedFile(static_cast<const char*>(data), size);
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  return *this;
}

MappedFile::~MappedFile() {
  if (data_) ::munmap(const_cast<char*>(data_), size_);
}

}  // namespace heddle
