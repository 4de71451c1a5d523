// SPDX-License-Identifier: MIT
#pragma once

#include <sys/types.h>

#include <string>

namespace heddle {

/// What runs on the loopback, to be ended when fs-record itself was killed.
struct RecordedProcesses {
  pid_t app = 0;
  ino_t space = 0;         ///< mount namespace; ours under proot
  std::string user_mount;  ///< what fusermount3 must take off, with its folder; empty: nothing
};
RecordedProcesses recorded_processes(pid_t app, const std::string& user_mount);

/// Kills them all and takes the mount off.
void end_run(const RecordedProcesses& run);

}  // namespace heddle
