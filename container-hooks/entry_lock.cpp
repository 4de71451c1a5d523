// SPDX-License-Identifier: MIT
#include "container-hooks/entry_lock.hpp"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>

#include "base/file_stamp.hpp"

namespace heddle {

Result<Fd> lock_entry(const std::string& path, Wait wait) {
  for (;;) {
    auto lock = open_file(path, O_RDWR | O_CREAT, 0600);
    if (!lock) return lock;
    while (::flock(lock->get(), LOCK_EX | (wait == Wait::no ? LOCK_NB : 0)) != 0)
      if (errno != EINTR) return fail_errno(path, "cannot lock the cache");
    struct stat held {};
    struct stat named {};
    if (::fstat(lock->get(), &held) == 0 && ::stat(path.c_str(), &named) == 0 &&
        file_id(held) == file_id(named))
      return lock;
  }
}

void hold_entry(const Fd& file) { (void)::flock(file.get(), LOCK_SH | LOCK_NB); }

bool is_held(const Fd& file) { return ::flock(file.get(), LOCK_EX | LOCK_NB) != 0; }

}  // namespace heddle
