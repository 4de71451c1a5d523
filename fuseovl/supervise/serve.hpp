// SPDX-License-Identifier: MIT
#pragma once

#include <poll.h>
#include <sys/types.h>

#include <optional>
#include <string>
#include <vector>

#include "fuseovl/overlay/overlay.hpp"

namespace heddle {

/// Has work of its own to do in the supervisor's loop. It is no thread: the worker is forked from
/// the supervisor, and would find locked what a thread of its holds at that moment.
class Attendant {
 public:
  Attendant() = default;
  Attendant(const Attendant&) = delete;
  Attendant& operator=(const Attendant&) = delete;
  virtual ~Attendant() = default;

  /// Adds the descriptors that it waits for.
  virtual void add_to(std::vector<pollfd>& polled) const = 0;
  /// What poll(2) said, also when nothing came or it was for others. It must not block.
  virtual void hear(const std::vector<pollfd>& polled) = 0;
  /// When it wants to be asked again in any case, monotonic_ms(); 0: never.
  virtual std::int64_t wakes_at() const = 0;
};

struct ServeOptions {
  /// What a signal detaches; nullopt: the mount is in a namespace that is not ours.
  std::optional<std::string> mount_point;
  dev_t mount_device = 0;      ///< st_dev of the mount, to tell it from another at the same place
  std::string cleanup;         ///< directory to remove at the end; empty: none
  Fd ready;                    ///< gets kReadyByte when the daemon answers, or an error's text
  bool report_at_end = false;  ///< `ready` gets the last counters as well
  SessionOptions session;
  Attendant* attendant = nullptr;  ///< the caller's
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
