// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>

namespace heddle::loopback {

/// Zeroed memory that this process and those it forks or clones have in common, at one address. It
/// takes pages only where it is written to. Throws std::system_error when there is no address
/// space.
class SharedPages {
 public:
  /// `bytes`, or, where the system does not promise as much, a half, a quarter... not below
  /// `least`.
  SharedPages(std::size_t bytes, std::size_t least);
  explicit SharedPages(std::size_t bytes) : SharedPages(bytes, bytes) {}
  SharedPages(const SharedPages&) = delete;
  SharedPages& operator=(const SharedPages&) = delete;
  ~SharedPages();

  char* data() const noexcept { return data_; }
  std::size_t size() const noexcept { return size_; }

 private:
  char* data_ = nullptr;
  std::size_t size_;
};

/// Has the pages of [memory, memory + size) in place, as far as the system lets us.
void make_present(void* memory, std::size_t size);

}  // namespace heddle::loopback
