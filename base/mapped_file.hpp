// SPDX-License-Identifier: MIT
#pragma once

#include <string>
#include <string_view>

#include "base/result.hpp"

namespace heddle {

/// A read-only private mapping of a whole file; empty files map to an empty view. Bytes change
/// under it if the file is written in place, and truncation raises SIGBUS: only for files that are
/// published by rename, or that no one else can write.
class MappedFile {
 public:
  static Result<MappedFile> open(const std::string& path);
  /// Maps what `fd` is open on; `fd` stays the caller's.
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
