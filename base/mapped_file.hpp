// SPDX-License-Identifier: MIT
#pragma once

#include <string>
#include <string_view>

#include "base/result.hpp"

namespace heddle {

/// A read-only mapping of a whole file. Truncating the file raises SIGBUS, so it is only for files
/// that no other process can write.
class MappedFile {
 public:
  /// Maps the file `fd`, which stays the caller's.
  static Result<MappedFile> map(int fd, const std::string& name);
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  ~MappedFile();

  std::string_view bytes() const noexcept { return {data_, size_}; }

 private:
  MappedFile(const char* data, std::size_t size) : data_(data), size_(size) {}
  const char* data_ = nullptr;
  std::size_t size_ = 0;
};

}  // namespace heddle
