// SPDX-License-Identifier: MIT
#include "fsgen/counters_file.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <cstring>

#include "base/fd.hpp"

namespace heddle {

Result<CountersFile> CountersFile::create(const std::string& path) {
  auto fd = open_file(path, O_RDWR | O_CREAT | O_EXCL, 0666);
  if (!fd) return fail(std::move(fd.error()));
  ::fchmod(fd->get(), 0666);
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
