// SPDX-License-Identifier: MIT
#pragma once

#include <sys/types.h>

#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include "base/sandbox/landlock.hpp"
#include "base/sandbox/seccomp_filter.hpp"
#include "fuseovl/files/origins.hpp"

namespace heddle {

/// What a worker is left with: the descriptors it has, memory, threads, time, and reading the files
/// that it has to open by their paths. Made once by the supervisor, entered by each worker before
/// its first thread, so that following a dead one stays quick.
class WorkerSandbox {
 public:
  /// `reopened`: files and directories that workers may have to open. `own`: more of these, which
  /// take no capability, on the node itself. Never fails: what the kernel does not have is left
  /// out. So is Landlock, and that is said, when a file of `reopened` does not answer for `limit`:
  /// it must be there to be named.
  explicit WorkerSandbox(const std::vector<std::string>& reopened,
                         const std::vector<std::string>& own = {},
                         std::chrono::milliseconds limit = kOriginTimeout);

  /// For ever: no capability (but CAP_DAC_READ_SEARCH where files are reopened), no new privileges,
  /// nothing else to open where the kernel has Landlock, and no system call but those of reading,
  /// answering and waiting; of others only `supervisor` can be sent signals. A call that is not
  /// allowed fails with EPERM and is logged by the kernel: a worker that is killed would be
  /// followed by one that does the same. Does nothing in a build with sanitizers.
  Result<void> enter(pid_t supervisor);

 private:
  std::optional<Landlock> files_ = Landlock();
  SeccompFilter calls_{SeccompFilter::Denied::fail};
  bool reopens_;
};

/// What a supervisor needs besides: forking, waiting, its sockets, unmounting.
struct SupervisorNeeds {
  bool unmounts = false;  ///< its own mount: CAP_SYS_ADMIN
  /// Its workers open files by their paths, or it has to pass directories that are closed to
  /// others, to unmount: CAP_DAC_READ_SEARCH.
  bool reopens = false;
};

/// Whether uid 0 comes to `path`, an absolute one, without any capability: through directories of
/// its own, or that others may search.
bool is_open_to_powerless_root(const std::string& path);

/// The filter of a service that mounts for its clients and is one of its mount's supervisors'
/// parents, for ever. Does nothing in a build with sanitizers.
Result<void> filter_service();

/// For ever, for this process and all that it forks: no other capability, no new privileges, and no
/// system call that executes, mounts, traces, makes devices or sockets, changes users or
/// namespaces. (Who unmounts by fusermount3 has it done by another process: mount/fusermount.hpp.)
/// Does nothing in a build with sanitizers.
Result<void> confine_supervisor(const SupervisorNeeds& needs);

}  // namespace heddle
