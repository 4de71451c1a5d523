// SPDX-License-Identifier: MIT
#include "record/loopback/shared_pages.hpp"

#include <sys/mman.h>
#include <sys/resource.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <system_error>

#include "base/fd.hpp"

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23  // Linux 5.14
#endif

namespace heddle::loopback {
namespace {

constexpr std::size_t kPage = 4096;

/// Invalid: none to be had. One that is larger than RLIMIT_FSIZE would end us by SIGXFSZ.
Fd file_in_memory(std::size_t bytes) {
  rlimit limit{};
  if (::getrlimit(RLIMIT_FSIZE, &limit) != 0 || limit.rlim_cur < bytes) return Fd();
  Fd file(::memfd_create("heddle-pages", MFD_CLOEXEC));
  if (!file || ::ftruncate(file.get(), static_cast<off_t>(bytes)) != 0) return Fd();
  return file;
}

/// A file in memory counts page by page, as they are used, also where vm.overcommit_memory is 2
/// (mm/shmem.c: memfd_create(2) makes it with VM_NORESERVE). All of a mapping without a file would
/// be taken from what the node promises to everybody there (mm/mmap.c: no MAP_NORESERVE under 2).
void* map_pages(std::size_t bytes) {
  const Fd file = file_in_memory(bytes);
  const int flags = MAP_SHARED | (file ? 0 : MAP_ANONYMOUS | MAP_NORESERVE);
  return ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, flags, file.get(), 0);
}

/// Of the address space that there is (RLIMIT_AS) a small part: others want some too.
std::size_t fair_part(std::size_t bytes, std::size_t least) {
  rlimit limit{};
  if (::getrlimit(RLIMIT_AS, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return bytes;
  return std::clamp(std::size_t{limit.rlim_cur} / 16 / kPage * kPage, least, bytes);
}

}  // namespace

SharedPages::SharedPages(std::size_t bytes, std::size_t least) : size_(fair_part(bytes, least)) {
  for (;; size_ /= 2) {
    void* memory = map_pages(size_);
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
