// SPDX-License-Identifier: MIT
#pragma once

#include <sys/mman.h>

#include <cerrno>
#include <cstddef>
#include <memory>
#include <new>
#include <span>
#include <system_error>
#include <type_traits>

namespace heddle {

namespace detail {
struct UnmapShared {
  std::size_t bytes = 0;
  void operator()(void* memory) const noexcept { ::munmap(memory, bytes); }
};

inline std::unique_ptr<void, UnmapShared> map_shared(std::size_t bytes) {
  void* memory = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) throw std::system_error(errno, std::generic_category(), "mmap");
  return {memory, UnmapShared{bytes}};
}
}  // namespace detail

/// `count` values of T, all zero at first, in memory that this process and those it forks from now
/// on have in common. T's are atomics or what is guarded by one. Throws std::system_error.
template <class T>
class SharedArray {
  static_assert(std::is_trivially_destructible_v<T>);

 public:
  explicit SharedArray(std::size_t count) : count_(count) {
    if (count == 0) return;
    memory_ = detail::map_shared(count * sizeof(T));
    for (std::size_t i = 0; i < count; ++i) new (static_cast<T*>(memory_.get()) + i) T{};
  }
  T& operator[](std::size_t i) const { return std::launder(static_cast<T*>(memory_.get()))[i]; }
  std::size_t size() const { return count_; }

 private:
  std::size_t count_;
  std::unique_ptr<void, detail::UnmapShared> memory_;
};

/// One T of that kind.
template <class T>
class Shared {
 public:
  Shared() : value_(1) {}
  T& operator*() const { return value_[0]; }
  T* operator->() const { return &value_[0]; }

 private:
  SharedArray<T> value_;
};

}  // namespace heddle
