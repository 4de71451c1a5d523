// SPDX-License-Identifier: MIT
#include "fuseovl/mount/mount_state.hpp"

#include <signal.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "base/process.hpp"

namespace heddle {

bool is_dead(const std::string& mount_point) {
  const pid_t pid = ::fork();
  if (pid < 0) return false;
  if (pid == 0) {
    // Names and attributes are answered from the kernel's cache, even for a dead mount; statfs
    // never is.
    struct statfs status {};
    ::_exit(::statfs(mount_point.c_str(), &status) != 0 && errno == ENOTCONN ? 1 : 0);
  }
  Child child(pid);
  const auto answer = child.wait_for(std::chrono::milliseconds(500));
  if (answer && *answer) return **answer == 1;
  // A question that the daemon has taken and not answered cannot be killed (fs/fuse/dev.c,
  // request_wait_answer), so it is not waited for either.
  ::kill(child.release(), SIGKILL);
  return false;
}

}  // namespace heddle
