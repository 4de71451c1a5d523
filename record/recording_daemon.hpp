// SPDX-License-Identifier: MIT
#pragma once

#include "base/child.hpp"
#include "record/recorded_run.hpp"

namespace heddle {

/// The process that serves the loopback and writes the trace: threads that answer the kernel, and
/// one that waits for the end. It stays outside APP's namespace, in a session of its own, so that
/// no signal of the terminal reaches it. When fs-record dies it kills what runs on the loopback and
/// leaves the trace incomplete; it ends with the mount. When it is killed it is not replaced: what
/// APP asks for fails then, the trace has no end, and fs-record reports that.
class RecordingDaemon {
 public:
  /// Forks and waits until the trace is begun and the device is served. `app` is a process in the
  /// namespace that is served; `natives` are mounted over their places there; `user_mount`, when
  /// not empty, is what fusermount3 must unmount (and remove) if we die; `out` what
  /// open_unreplaceable() gave for options.out, it may be none.
  static Result<RecordingDaemon> start(Fd device, const RecordOptions& options,
                                       const trace::RunHeader& header,
                                       const std::vector<std::string>& natives, pid_t app,
                                       const std::string& user_mount, const Fd& out);

  RecordingDaemon(RecordingDaemon&&) noexcept = default;
  RecordingDaemon& operator=(RecordingDaemon&&) = delete;
  /// Without finish(), the daemon ends the run as it does when we die; after fifteen seconds it is
  /// killed.
  ~RecordingDaemon();

  struct End {
    std::uint64_t events = 0;
    bool left_running = false;  ///< processes that APP left behind still use the loopback
    std::string failure;        ///< why the trace is not whole; empty: it is
  };
  /// APP has ended: the trace is finished once the mount has gone, or after a second.
  Result<End> finish(int exit_status, bool complete);

 private:
  RecordingDaemon(Child child, Fd socket) : child_(std::move(child)), socket_(std::move(socket)) {}
  Child child_;
  Fd socket_;
};

}  // namespace heddle
