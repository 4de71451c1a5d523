// SPDX-License-Identifier: MIT
#include "container-hooks/entry_lock.hpp"

#include <fcntl.h>
#include <poll.h>
#include <sys/file.h>
#include <sys/stat.h>

#include <algorithm>

#include "base/file_stamp.hpp"

namespace heddle {
namespace {

/// A decision takes 100 ms.
constexpr int kLongestPauseMs = 10;

}  // namespace

Result<Fd> lock_entry(const std::string& path, Access access, Wait wait, int asker) {
  const int operation = (access == Access::change ? LOCK_EX : LOCK_SH) | LOCK_NB;
  int pause_ms = 1;
  for (;;) {
    auto lock = open_file(path, O_RDWR | O_CREAT, 0600);
    if (!lock) return lock;
    // Asked again and again: flock(2) waits for nothing else.
    while (::flock(lock->get(), operation) != 0) {
      if (errno == EINTR) continue;
      if (errno != EWOULDBLOCK || wait == Wait::no)
        return fail_errno(path, "cannot lock the cache");
      pollfd gone{asker, 0, 0};
      if (::poll(&gone, 1, pause_ms) > 0)
        return fail(path, "not waited for any longer", "nobody asks for the decision any more");
      pause_ms = std::min(2 * pause_ms, kLongestPauseMs);
    }
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
