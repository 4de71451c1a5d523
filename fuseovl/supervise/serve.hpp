// SPDX-License-Identifier: MIT
#pragma once

#include <signal.h>
#include <sys/types.h>

#include <optional>
#include <string>

#include "fuseovl/overlay/overlay.hpp"

namespace heddle {

/// Signals that end a daemon, whichever of its processes they are sent to.
inline constexpr int kEndingSignals[] = {SIGTERM, SIGINT, SIGHUP};
inline sigset_t ending_signals() {
  sigset_t set;
  ::sigemptyset(&set);
  for (const int n : kEndingSignals) ::sigaddset(&set, n);
  return set;
}

struct ServeOptions {
  /// What a signal detaches; nullopt: the mount is in a namespace that is not ours.
  std::optional<std::string> mount_point;
  dev_t mount_device = 0;      ///< st_dev of the mount, to tell it from another at the same place
  std::string cleanup;         ///< directory to remove at the end; empty: none
  Fd ready;                    ///< gets kReadyByte when the daemon answers, or an error's text
  bool report_at_end = false;  ///< `ready` gets the last counters as well
  SessionOptions session;
  /// A socket of the service that the daemon belongs to: when it hangs up the mount is detached.
  /// None: signals do that; with one they are the service's matter.
  Fd service;
};

/// Serves `overlay` on `device` until the file system is gone; blocks. The caller becomes the
/// supervisor: it holds the device and the pinned files, and a worker forked from it answers the
/// kernel. A worker that dies is followed by another, which has all of it at once, and the kernel
/// sends it what the dead one had not answered; programs notice nothing. Fails when workers die as
/// soon as they start, or die where the kernel is older than Linux 6.9. A supervisor that dies
/// takes its worker along.
///
/// SIGTERM, SIGINT and SIGHUP to either detach the mount: it leaves the tree at once, and the
/// daemon ends when its last user has gone, so that running programs do not lose their libraries. A
/// second signal ends it at once.
///
/// The caller has no other threads.
Result<void> serve(Overlay& overlay, Fd device, ServeOptions options);

}  // namespace heddle
