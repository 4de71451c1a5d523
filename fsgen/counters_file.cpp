// SPDX-License-Identifier: MIT
#include "fsgen/counters_file.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <cstring>

#include "base/fd.hpp"

namespace heddle {

Result<CountersFile> CountersFile::create(const std::string& path) {
  // Guided processes have it mapped: whoever may write it may truncate it, and each of them would
  // end by a SIGBUS at its next dlopen.
  auto fd = open_file(path, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW, 0600);
  if (!fd) return fail(std::move(fd.error()));
  // posix_fallocate, not ftruncate: on a full disk the first write through the mapping is a SIGBUS.
  if (const int error = ::posix_fallocate(fd->get(), 0, sizeof(Counters)); error != 0)
    return fail_errno(path, "cannot write", error);
  void* page = ::mmap(nullptr, sizeof(Counters), PROT_READ | PROT_WRITE, MAP_SHARED, fd->get(), 0);
  if (page == MAP_FAILED) return fail_errno(path, "cannot map");
  auto* counters = static_cast<Counters*>(page);
  std::memcpy(counters->magic, kCountersMagic, sizeof(kCountersMagic));
  return CountersFile(counters);
}

CountersFile::~CountersFile() {
  if (page_) ::munmap(page_, sizeof(Counters));
}

}  // namespace heddle
