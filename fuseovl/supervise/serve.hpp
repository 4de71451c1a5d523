// SPDX-License-Identifier: MIT
#pragma once

#include <signal.h>
#include <sys/types.h>

#include <optional>
#include <string>

#include "fuseovl/overlay/overlay.hpp"

namespace heddle {

/// Signals that end a daemon, sent to any of its processes.
inline constexpr int kEndingSignals[] = {SIGTERM, SIGINT, SIGHUP};
inline sigset_t ending_signals() {
  sigset_t set;
  ::sigemptyset(&set);
  for (const int n : kEndingSignals) ::sigaddset(&set, n);
  return set;
}

struct ServeOptions {
  /// Detached by a signal; nullopt: the mount is in another namespace.
  std::optional<std::string> mount_point;
  dev_t mount_device = 0;      ///< st_dev of the mount: another one may be at its place
  std::string cleanup;         ///< directory to remove at the end; empty: none
  Fd ready;                    ///< gets kReadyByte when the daemon answers, or an error's text
  bool report_at_end = false;  ///< `ready` gets the last counters as well
  SessionOptions session;
  /// A socket of the daemon's service: the mount is detached when it hangs up, and by no signal.
  Fd service;
};

/// Serves `overlay` on `device` until the file system is gone; blocks. The caller, which has no
/// other threads, becomes the supervisor: it holds the device and the pinned files, and forks a
/// worker that answers the kernel. A worker that dies is replaced, and the kernel resends what it
/// had not answered; programs notice nothing. Fails when workers die as soon as they start, or when
/// one dies before Linux 6.9. The worker ends with the supervisor.
///
/// SIGTERM, SIGINT and SIGHUP detach the mount: it leaves the tree at once, and the daemon ends
/// with the last user, so that running programs keep their libraries. A second signal ends it at
/// once.
Result<void> serve(Overlay& overlay, Fd device, ServeOptions options);

}  // namespace heddle
