// SPDX-License-Identifier: MIT
// How a supervisor ends when it is told to.

#include <signal.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/log.hpp"
#include "base/temp_dir.hpp"
#include "fuseovl/mount/kernel_mount.hpp"
#include "fuseovl/supervise/supervisor.hpp"

namespace heddle {

using std::chrono::milliseconds;

void Supervisor::take_signals() {
  signalfd_siginfo info{};
  while (::read(signals_.get(), &info, sizeof(info)) == sizeof(info))
    if (info.ssi_signo != SIGCHLD) end_by_signal();
}

void Supervisor::end_by_signal() {
  if (leaving_ || !detach()) end_at_once();
  leaving_ = true;
  if (!worker_ends_within(milliseconds(300)))
    say("detached; ends when its last user has gone, or at the next signal");
}

/// Mostly nobody uses a mount that is ended. The worker stays to be waited for.
bool Supervisor::worker_ends_within(milliseconds limit) const {
  for (const auto end = Clock::now() + limit; Clock::now() < end;) {
    siginfo_t info{};
    if (::waitid(P_PID, static_cast<id_t>(worker_), &info, WEXITED | WNOHANG | WNOWAIT) != 0 ||
        info.si_pid == worker_)
      return true;
    const timespec moment{0, 200'000};
    ::nanosleep(&moment, nullptr);
  }
  return false;
}

/// Result: whether to wait for the last user. The mount of another namespace cannot be detached;
/// it goes with that namespace's last process, and a job's signal must not take its libraries
/// away, nor those of a service's clients. Nor must one that comes when another mount has taken
/// this one's place.
bool Supervisor::detach() const {
  if (!options_.mount_point || options_.service) return true;
  const auto mounted = find_mount(*options_.mount_point);
  if (!mounted || !*mounted) return false;
  if ((*mounted)->device != options_.mount_device) return true;
  if (auto done = unmount_fuse(*options_.mount_point, Unmount::detach); !done) {
    report(done.error());
    return false;
  }
  return true;
}

// The kernel ends the connection when the device is closed; nothing else of ours is outside.
void Supervisor::end_at_once() const {
  // Whoever waits for a file system that does not answer would wait on.
  state_.giving_up = true;
  if (!worker_ends_within(milliseconds(300)) && ::kill(worker_, SIGKILL) == 0)
    (void)worker_ends_within(milliseconds(300));
  if (!options_.cleanup.empty()) (void)remove_tree(options_.cleanup);
  ::_exit(0);
}

}  // namespace heddle
