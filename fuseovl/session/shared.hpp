// SPDX-License-Identifier: MIT
#pragma once

#include <sys/mman.h>

#include <cerrno>
#include <cstddef>
#include <new>
#include <system_error>
#include <type_traits>
#include <utility>

namespace heddle {

/// `count` default-constructed values of T in memory that this process shares with those it forks
/// from now on. T is atomic, or guarded by an atomic. Throws std::system_error.
template <class T>
class SharedArray {
  static_assert(std::is_trivially_destructible_v<T>);

 public:
  explicit SharedArray(std::size_t count) : count_(count) {
    if (count == 0) return;
    void* memory =
        ::mmap(nullptr, size_bytes(), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) throw std::system_error(errno, std::generic_category(), "mmap");
    values_ = static_cast<T*>(memory);
    for (std::size_t i = 0; i < count; ++i) new (values_ + i) T{};
  }
  SharedArray(SharedArray&& other) noexcept
      : count_(other.count_), values_(std::exchange(other.values_, nullptr)) {}
  SharedArray& operator=(SharedArray&& other) noexcept {
    std::swap(count_, other.count_);
    std::swap(values_, other.values_);
    return *this;
  }
  ~SharedArray() {
    if (values_) ::munmap(values_, size_bytes());
  }
  T& operator[](std::size_t i) const { return values_[i]; }
  std::size_t size() const { return count_; }

 private:
  std::size_t size_bytes() const { return count_ * sizeof(T); }
  std::size_t count_;
  T* values_ = nullptr;
};

/// One value of a SharedArray.
template <class T>
class Shared {
 public:
  T& operator*() const { return value_[0]; }
  T* operator->() const { return &value_[0]; }

 private:
  SharedArray<T> value_{1};
};

}  // namespace heddle
