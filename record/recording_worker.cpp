// SPDX-License-Identifier: MIT
#include "record/recording_worker.hpp"

#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "record/loopback/server.hpp"

namespace heddle {

pid_t fork_with_our_descriptors() {
  // glibc's fork() has no such flag. It also keeps a thread's id in user space (struct pthread) and
  // has the kernel write it there; so do we, where the kernel tells us the place.
  int* tid = nullptr;
  unsigned long flags = CLONE_FILES | SIGCHLD;
  if (::prctl(PR_GET_TID_ADDRESS, &tid) == 0 && tid)
    flags |= CLONE_CHILD_SETTID | CLONE_CHILD_CLEARTID;
  // The address stands fourth or fifth, as the architecture has it (clone(2)); the other is for
  // CLONE_SETTLS.
  return static_cast<pid_t>(::syscall(SYS_clone, flags, nullptr, nullptr, tid, tid));
}

void work(RecordingMemory& memory, const RecorderOptions& options, int device, pid_t supervisor,
          bool follows) {
  // A recording whose supervisor was killed is to end as one process would.
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != supervisor) ::_exit(1);
  ::prctl(PR_SET_NAME, "fs-record:work");
  memory.loopback.recover();
  memory.events->take_over();
  Recorder recorder(memory, options);
  loopback::Loopback loopback(recorder, memory.loopback);
  loopback::Server server(loopback, memory.loopback.slots, device);
  if (follows) {
    const auto taken = server.take_over();
    if (!taken && taken.error().code() == EINVAL) ::_exit(kNoResend);
    if (!taken) loopback::leave_to_next_worker();
  }
  server.run();
  loopback.close_all();
  ::_exit(kMountGone);
}

}  // namespace heddle
