// SPDX-License-Identifier: MIT
#pragma once

#include <sys/types.h>

#include <array>
#include <atomic>
#include <cstdint>

#include "fuseovl/session/counters.hpp"
#include "fuseovl/session/session.hpp"

namespace heddle {

/// What outlives the process that answers the kernel's requests, in memory that it shares with the
/// one that watches over it (fuseovl/supervise/serve.hpp).
struct ServingState {
  /// How far whoever warmed the mount is with reading ahead.
  enum class Prefetch : std::uint8_t { none, running, done };

  RequestCounters counters;
  SessionMemory session;
  std::atomic<Prefetch> prefetch = Prefetch::none;
  std::atomic<pid_t> supervisor = 0;
  std::atomic<pid_t> worker = 0;
  std::atomic<std::uint64_t> workers_lost = 0;
  std::atomic<bool> told_ready = false;
  /// The worker's exit status, once it has done its work. It may be unable to end, for a thread
  /// that stands in a file system that does not answer.
  std::atomic<int> exit_status = kWorks;
  static constexpr int kWorks = -1;
  std::atomic<pid_t> thread = 0;        ///< one of the worker's that ends when it does
  std::atomic<bool> giving_up = false;  ///< nothing is to be waited for any more
  std::array<char, 1024> failure{};     ///< why the worker gave up; read when it has ended
};

}  // namespace heddle
