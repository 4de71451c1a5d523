// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/content_hash.hpp"

namespace heddle {

/// Random access to an open file of a known size, by pread: a mapping would raise SIGBUS when the
/// file is truncated meanwhile. Small files are read once, as a whole.
class FileBytes {
 public:
  /// Borrows `fd`.
  FileBytes(int fd, std::uint64_t size) : fd_(fd), size_(size) {}
  /// Reads the file once to hash it. Fails when its length is no longer `size`, or on EIO.
  Result<ContentHash> hash();

  std::uint64_t size() const { return size_; }
  /// Fills `to` from `offset`; false when that is not wholly inside the file.
  bool read(std::uint64_t offset, void* to, std::uint64_t count) const;
  /// As read(), appended to `to`.
  bool append(std::vector<std::uint8_t>& to, std::uint64_t offset, std::uint64_t count) const;

 private:
  int fd_;
  std::uint64_t size_;
  std::string whole_;  ///< the content of a small file, once hash() was called
};

}  // namespace heddle
