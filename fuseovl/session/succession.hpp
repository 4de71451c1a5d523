// SPDX-License-Identifier: MIT
#pragma once

// What supervisors of workers on one FUSE device have in common; fs-mount's and fs-record's. No
// libfuse.

#include <chrono>
#include <cstdint>

#include "base/result.hpp"

namespace heddle {

/// Whether, and after what pause, a worker that died is followed by another. One that was killed
/// from outside has lived a while or answered something; one that dies of what it is asked, or of
/// empty memory, does neither, and its followers would not either.
class Succession {
 public:
  /// A worker is about to start; `answers` were written to the device so far.
  void starts(std::uint64_t answers);
  /// It has died. False: ten in a row did nothing.
  bool died(std::uint64_t answers);
  /// How long to wait before the next.
  std::chrono::milliseconds pause() const;

 private:
  std::chrono::steady_clock::time_point started_;
  std::uint64_t answers_ = 0;
  int hopeless_ = 0;
};

/// No pause between two starts is longer.
inline constexpr std::chrono::milliseconds kLongestPause{1000};

/// Whether a read or write of the device that failed with `error` is to be tried again: a request
/// that is read or answered in vain leaves a process waiting for ever, and what fails for want of
/// memory mostly works a moment later. ENOENT (nobody waits any more), ENODEV (unmounted) and what
/// a mistake of ours would be stay what they are.
bool may_pass(int error);

/// The kernel sends again what a dead process has read from `device` and not answered
/// (FUSE_NOTIFY_RESEND). EINVAL before Linux 6.9.
Result<void> ask_to_resend(int device);

/// In the flags2 of the INIT request: ask_to_resend() works (FUSE_HAS_RESEND, bit 39 of both
/// flags). Newer than the headers of Debian 12, as the next.
inline constexpr std::uint32_t kHasResendInFlags2 = 1U << 7;
/// Set in `unique` of a request that is sent again.
inline constexpr std::uint64_t kResentUnique = 1ULL << 63;

}  // namespace heddle
