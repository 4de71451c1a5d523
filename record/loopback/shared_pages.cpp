// SPDX-License-Identifier: MIT
#include "record/loopback/shared_pages.hpp"

#include <sys/mman.h>

#include <cerrno>
#include <cstdint>
#include <system_error>

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23  // Linux 5.14
#endif

namespace heddle::loopback {
namespace {

constexpr std::size_t kPage = 4096;

}  // namespace

SharedPages::SharedPages(std::size_t bytes, std::size_t least) : size_(bytes) {
  for (;; size_ /= 2) {
    void* memory = ::mmap(nullptr, size_, PROT_READ | PROT_WRITE,
                          MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory != MAP_FAILED) {
      data_ = static_cast<char*>(memory);
      return;
    }
    if (size_ / 2 < least) throw std::system_error(errno, std::generic_category(), "mmap");
  }
}

SharedPages::~SharedPages() { ::munmap(data_, size_); }

void make_present(void* memory, std::size_t size) {
  const auto begin = reinterpret_cast<std::uintptr_t>(memory) / kPage * kPage;
  const auto end = reinterpret_cast<std::uintptr_t>(memory) + size;
  if (::madvise(reinterpret_cast<void*>(begin), end - begin, MADV_POPULATE_WRITE) == 0) return;
  for (auto at = begin; at < end; at += kPage) {
    auto* byte = reinterpret_cast<volatile char*>(at < reinterpret_cast<std::uintptr_t>(memory)
                                                      ? reinterpret_cast<std::uintptr_t>(memory)
                                                      : at);
    *byte = *byte;
  }
}

}  // namespace heddle::loopback
