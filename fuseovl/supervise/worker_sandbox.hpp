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

/// Restricts a worker to its descriptors, memory, threads, time, and reading the files that it
/// reopens or that are below the map's trees. Made once by the supervisor, entered by each worker
/// before its first thread.
class WorkerSandbox {
 public:
  /// `reopened`: files and directories that workers may have to open. `own`: local ones, which need
  /// no capability. `trees`: descriptors of directories, anywhere below which they may open files.
  /// Leaves out what the kernel lacks, and, with a warning, Landlock if a file of `reopened` does
  /// not answer within `limit`: a Landlock rule needs an open file.
  explicit WorkerSandbox(const std::vector<std::string>& reopened,
                         const std::vector<std::string>& own = {},
                         std::chrono::milliseconds limit = kOriginTimeout,
                         const std::vector<int>& trees = {});

  /// Files and directories that workers made from now on may have to open, those that answer within
  /// `limit`. False: one did not, no process could ask, or there is no Landlock. Throws nothing.
  bool allow(const std::vector<std::string>& reopened, std::chrono::milliseconds limit);
  bool restricts_files() const { return files_ && files_->works(); }

  /// For good: no capability (but CAP_DAC_READ_SEARCH where files are reopened), no new privileges,
  /// no other files (Landlock), no system calls but those for reading, answering and waiting, and
  /// signals to `supervisor` and itself only. A forbidden call fails with EPERM: a worker killed
  /// for it would be replaced by one that does the same. Does nothing in a build with sanitizers.
  Result<void> enter(pid_t supervisor);

 private:
  std::optional<Landlock> files_ = Landlock();
  SeccompFilter calls_{SeccompFilter::Denied::fail};
  bool reopens_;
};

/// Capabilities that a supervisor needs.
struct SupervisorNeeds {
  bool unmounts = false;  ///< CAP_SYS_ADMIN
  /// Its workers reopen files, or the way to its mount point is closed: CAP_DAC_READ_SEARCH.
  bool reopens = false;
};

/// Whether uid 0 reaches the absolute `path` without any capability.
bool is_open_to_powerless_root(const std::string& path);

/// The seccomp filter of a mount service, for good. Does nothing in a build with sanitizers.
Result<void> filter_service();

/// For good, for this process and its children: no other capability, no new privileges, and no
/// system call that executes, mounts, traces, makes devices or sockets, or changes users or
/// namespaces. The guard unmounts by fusermount3 (mount/fusermount.hpp). Does nothing in a build
/// with sanitizers.
Result<void> confine_supervisor(const SupervisorNeeds& needs);

}  // namespace heddle
