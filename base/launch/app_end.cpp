// SPDX-License-Identifier: MIT
#include "base/launch/app_end.hpp"

#include <signal.h>
#include <sys/prctl.h>

namespace heddle {

int end_like(AppEnd end) {
  if (end.signal == 0) return end.status;
  // core(5): a core_pattern that is a pipe does not heed RLIMIT_CORE; this holds for it too.
  ::prctl(PR_SET_DUMPABLE, 0);
  ::signal(end.signal, SIG_DFL);
  sigset_t only;
  ::sigemptyset(&only);
  ::sigaddset(&only, end.signal);
  ::sigprocmask(SIG_UNBLOCK, &only, nullptr);
  ::raise(end.signal);
  return end.status;
}

}  // namespace heddle
